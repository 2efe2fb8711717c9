"""The types of findings."""

from __future__ import annotations

from typing import Literal

Status = Literal["identical", "known places", "numbers", "differs"]
STATUSES: tuple[Status, ...] = ("identical", "known places", "numbers", "differs")
Finding = tuple[Status, str]  # and a description of the place
