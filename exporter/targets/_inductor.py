"""What inductor does not do by itself: keep its headers, write the same sources each time, find vector instructions."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from exporter.core import environment

ADDRESS = re.compile(r" at 0x[0-9a-f]+")
SOURCES = ("wrapper.cpp", "kernel.cpp")  # of a package
# oneDNN's descriptor of a packed weight as it lies in memory: 12 dimensions in each list, then ideep's count of groups.
DESCRIPTOR = re.compile(r"(?<=opaque_metadata = \{)(?:\d+L, ){771}\d+L(?=\};)")
PADDING = (*range(108, 112), *range(316, 320), *range(420, 424))  # bytes of it that nobody has set


def keep_headers() -> None:
    """Keep precompiled headers with all else that is cached: torch puts them where temporary files go away."""
    from torch._inductor import codecache
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    place = Path(cache_dir()) / "precompiled_headers"
    codecache._HEADER_DIR, codecache._HEADER_LOCK_DIR = str(place), str(place / "locks")


def repeat_itself() -> None:
    """Let inductor write the same sources each time: without what happens to be in memory, or earlier commands.

    It appends its commands to the sources, and finds them again in the cache, under the hash of what they were before.
    """
    from torch._inductor import codecache

    write = codecache.write

    def write_anew(content: Any, extension: str, *args: Any, **settings: Any) -> tuple[str, str]:
        if extension not in SOURCES:
            return write(content, extension, *args, **settings)
        content = DESCRIPTOR.sub(_without_padding, ADDRESS.sub("", content))
        key, path = write(content, extension, *args, **settings)
        codecache.write_atomic(path, content)
        return key, path

    codecache.write = write_anew


def _without_padding(descriptor: re.Match[str]) -> str:
    numbers = descriptor[0].split(", ")
    return ", ".join("0L" if index in PADDING else number for index, number in enumerate(numbers))


@contextlib.contextmanager
def unfolded(prefix: str) -> Iterator[None]:
    """While a package is frozen: constants whose names begin so are no constants, for calls change them.

    Inductor's constant folding asks for the value of every attribute; for these it is told that there is none.
    """
    from torch._inductor.constant_folding import ConstantFolder

    run_node = ConstantFolder.run_node

    def run(self: Any, node: Any) -> Any:
        if node.op == "get_attr" and str(node.target).startswith(prefix):
            return self.unknown_value
        return run_node(self, node)

    patched: Any = ConstantFolder
    patched.run_node = run
    try:
        yield
    finally:
        patched.run_node = run_node


def find_vector_instructions() -> tuple[str, ...]:
    """Let inductor find them now: its probes load only while they are linked with torch, which `settings` ends.

    It keeps probes that do not load, and compiles without vectors from then on; a note says so.
    """
    from torch._inductor import cpu_vec_isa
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    if cpu_vec_isa.valid_vec_isa_list() or not environment.isa().startswith(("avx2", "avx512", "amx")):
        return ()
    return (f"slow: without vector instructions, for inductor's probes in {cache_dir()} do not load: remove it",)
