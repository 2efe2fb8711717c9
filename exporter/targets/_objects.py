"""A cache of the objects that inductor compiles from C++, because it compiles unchanged sources again in every export.

An object depends on its source and the compile command, except for the paths in them, and on the compiler, torch and,
because of `-march=native`, the CPU. Objects with weights are not kept: they are large, and assembling them is fast.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from exporter.core import environment


@contextlib.contextmanager
def reused() -> Iterator[None]:
    """Keep compiled objects in inductor's cache directory, and take them from there."""
    from torch._inductor.cpp_builder import CppBuilder
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    patched: Any = CppBuilder
    build = patched.build
    directory = Path(cache_dir()) / "objects"

    def build_once(builder: Any) -> None:
        target = Path(builder.get_target_file_path())
        source = target.with_suffix(".cpp")
        if target.suffix != ".o" or not source.is_file():
            build(builder)
            return
        command = builder.get_command_line()
        compiler = command.split()[0]
        for place, name in ((target, "TARGET"), (source, "SOURCE"), (cache_dir(), "CACHE")):
            command = command.replace(str(place), name)
        kept = directory / f"{key(source.read_bytes(), command, compiler)}.o"
        if kept.is_file():
            shutil.copyfile(kept, target)
            return
        build(builder)
        _keep(target, kept)

    patched.build = build_once
    try:
        yield
    finally:
        patched.build = build


def key(source: bytes, command: str, compiler: str) -> str:
    """Return a hash of a source, of the command that compiles it, and of all else that the result depends on."""
    import torch
    from torch._inductor.cpp_builder import get_compiler_version_info

    parts = (
        command,
        get_compiler_version_info(compiler),
        torch.__version__,
        environment.cpu_name(),
        *sorted(environment.cpu_flags()),
    )
    return hashlib.sha256("\0".join(parts).encode() + b"\0" + source).hexdigest()


def _keep(target: Path, kept: Path) -> None:
    """Copy an object into the cache. A full disk or a read-only cache only means that it is compiled again."""
    with contextlib.suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=kept.parent)
        os.close(handle)
        try:
            shutil.copyfile(target, partial)
            Path(partial).replace(kept)
        except OSError:
            Path(partial).unlink()
            raise
