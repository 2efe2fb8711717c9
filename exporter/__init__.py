"""Which artifact of this PyTorch model should I ship, and is it right?

`export` makes a bundle of artifacts with their proof; `open_artifact` runs one of them. Importing this imports no torch.
"""

from __future__ import annotations

__version__ = "0.1.0"
