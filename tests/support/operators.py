"""A library of custom operators, which the C++ build makes."""

from __future__ import annotations

import pytest

from support.commands import ROOT

BUILT = ROOT / "build" / "cpp" / "tests" / "exporter_test_ops.so"


needs_the_library = pytest.mark.skipif(not BUILT.is_file(), reason=f"{BUILT} is not built (make cpp)")
