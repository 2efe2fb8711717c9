"""Causes that the traceback of an error shows, and its message does not. Never imports torch."""

from __future__ import annotations

import traceback

from exporter.core import causes, checks_in_code, source_lines
from exporter.core.errors import Blame

_PACKING = ("pack_padded_sequence", "pad_packed_sequence")
_PACKS = "torch/nn/utils/rnn.py"
_LAYERS = "torch/nn/modules/rnn.py"
_SIZES = ("size-from-values", "number-from-values", "branch-on-values")


def blame(error: BaseException) -> Blame | None:
    """Return the cause that the frames of an error show; None if they show none that its message does not name."""
    found = causes.find(source_lines.summary(error))
    if found is None:
        return None
    if found.name == "unknown-kernel" and _copies(error):
        return Blame("copied-in-forward")
    if found.name in _SIZES and (function := _packs(error)):
        return Blame("packed-sequence", {"function": function})
    if found.name in _SIZES[1:] and _repeats(error):
        return Blame("loop-on-values")
    return None


def _copies(error: BaseException) -> bool:
    """Return whether `copy.deepcopy` was called."""
    return any(
        frame.f_code.co_name == "deepcopy" and frame.f_globals.get("__name__") == "copy"
        for one in source_lines.chain(error)
        for frame, _ in traceback.walk_tb(one.__traceback__)
    )


def _repeats(error: BaseException) -> bool:
    """Return whether the model's last frame was in the condition of a while loop."""
    frames = source_lines.frames_of(error)
    return bool(frames) and checks_in_code.repeats(frames[-1].filename, frames[-1].lineno or 0)


def _packs(error: BaseException) -> str:
    """Return the function that packs or unpacks a sequence, or the layer that takes a packed one; else ""."""
    for one in source_lines.chain(error):
        for frame, _ in traceback.walk_tb(one.__traceback__):
            file, function = frame.f_code.co_filename, frame.f_code.co_name
            if file.endswith(_PACKS) and function in _PACKING:
                return function
            if file.endswith(_LAYERS) and frame.f_locals.get("batch_sizes") is not None:
                return type(frame.f_locals.get("self")).__name__
    return ""
