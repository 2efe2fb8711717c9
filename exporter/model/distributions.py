"""torch.distributions without the checks of their parameters and samples.

The checks read the values of tensors, on which no exported program can branch. Where eager would raise ValueError, an
artifact computes what the formula yields. A distribution that is made with `validate_args=True` keeps its checks.
"""

from __future__ import annotations

import contextlib
from unittest import mock

from torch.distributions import Distribution


def unchecked() -> contextlib.AbstractContextManager[object]:
    """Leave the checks out within this context, as `Distribution.set_default_validate_args(False)` does."""
    return mock.patch.object(Distribution, "_validate_args", False)
