"""What is found of a file, and where."""

from __future__ import annotations

from typing import Literal

Status = Literal["identical", "known places", "numbers", "differs"]
STATUSES: tuple[Status, ...] = ("identical", "known places", "numbers", "differs")
Finding = tuple[Status, str]  # and the place
