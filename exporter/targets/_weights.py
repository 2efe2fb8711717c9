"""Packages whose weights are a separate member of the archive, with an index by which `_mapping` maps them.

Inductor writes the weights into the package's library by default, from which each loader copies them to the heap. In a
`binary_blob` they can stay where they are, but the blob alone does not say what it contains.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporter.targets import _inductor

if TYPE_CHECKING:
    import torch

FORMAT = "binary_blob"
SETTINGS = {"aot_inductor.package_constants_on_disk_format": FORMAT}
BLOB = "_weights.blob"  # the end of inductor's name for it
ALIGNMENT = 64  # bytes; inductor pads each constant to a multiple of it


@contextlib.contextmanager
def indexed() -> Iterator[None]:
    """Make inductor put an index beside each blob of weights that it writes."""
    from torch._inductor import config
    from torch._inductor.codecache import AotCodeCompiler

    compiler: Any = AotCodeCompiler
    compile = compiler.compile

    def compile_with_index(graph: Any, *args: Any, **settings: Any) -> Any:
        separate = config.aot_inductor.package_constants_on_disk_format == FORMAT
        index = _index(graph) if separate else []
        files = compile(graph, *args, **settings)
        for blob in [Path(file) for file in files if str(file).endswith(BLOB)]:
            if not index:
                files.remove(str(blob))  # torch cannot map an empty file
                continue
            blob.with_suffix(".json").write_text(json.dumps({"constants": index}))
            files.append(str(blob.with_suffix(".json")))
        return files

    compiler.compile = compile_with_index
    try:
        yield
    finally:
        compiler.compile = compile


def _index(graph: Any) -> list[dict[str, Any]]:
    """Return where each constant of inductor's graph is in the blob; see docs/formats.md."""
    index: list[dict[str, Any]] = []
    offset = 0
    for name in graph.constants:
        if name in graph.folded_constants:  # calculated when the package is loaded
            continue
        tensor = graph.get_original_value_of_constant(name)
        entry = _entry(tensor) | {"name": name, "offset": offset}
        index.append(entry)
        offset += padded(entry["bytes"])
    return index


def padded(size: int) -> int:
    """Return the space that a constant of this size takes in a blob, in bytes."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def _entry(tensor: torch.Tensor) -> dict[str, Any]:
    import torch

    described: dict[str, Any] = {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
        "start": tensor.storage_offset(),
    }
    if not tensor.numel():
        return described | {"bytes": 0}
    if not tensor.is_mkldnn:
        return described | {"bytes": tensor.untyped_storage().nbytes()}
    layout = _inductor.without_padding(torch.ops.mkldnn._get_mkldnn_serialized_md(tensor).tolist())
    return described | {
        "bytes": torch.ops.mkldnn._nbytes(tensor),
        "packed": layout,
    }
