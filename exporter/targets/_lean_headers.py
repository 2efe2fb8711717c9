"""AOTInductor's headers without what makes a package's wrapper slow to compile.

GCC instantiates all templates that a header's inline functions use in every file that includes it, even if the header
is precompiled. In AOTInductor's, most of them are those of std::regex, for one function, which parses the name of a
device. Wrappers are compiled with its declaration alone; AOTInductor's interface has the definition.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

HEADER = "torch/csrc/inductor/aoti_runtime/model_base.h"
FUNCTION = re.compile(r"^inline (void parse_device_str\([^)]*\)) \{\n.*?^\}\n", re.MULTILINE | re.DOTALL)
# The compiler would leave out an inline function that is only called where it is expanded.
DEFINED = "namespace torch::aot_inductor { [[gnu::used]] static auto* const parses_devices = &parse_device_str; }\n"


def lean() -> str | None:
    """Return the header with that function's declaration, or None if this torch defines the function differently."""
    import torch

    try:
        header = (Path(torch.__file__).parent / "include" / HEADER).read_text()
    except OSError:
        return None
    text, count = FUNCTION.subn(r"\1;\n", header)
    return text if count == 1 else None


def defined() -> str:
    """Return what to append to the interface of packages, so that it has the definition."""
    return DEFINED if lean() else ""


def folder(place: Path) -> Path | None:
    """Return the folder in the cache directory `place` that is searched first for what wrappers include, if any."""
    text = lean()
    return place / "lean" / hashlib.sha256(text.encode()).hexdigest()[:16] if text else None


def fill(found: Path) -> None:
    """Write the header into that folder, unless it is there."""
    from torch._inductor import codecache

    text = lean()
    if text and not (found / HEADER).exists():
        codecache.write_atomic(str(found / HEADER), text, make_dirs=True)
