"""What the packages of a machine share: precompiled headers, AOTInductor's interface, and which instructions work.

They take up to 20 s, once per machine. They are made with a package of a small program while a model is loaded.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from exporter.core import environment
from exporter.core.contract_records import Contract, TensorSpec
from exporter.core.size_range import Range
from exporter.targets import Exported, Options, _objects

if TYPE_CHECKING:
    from exporter.model.capture import Program

SHARED = 2  # changes with what packages share
WIDTH = 8
INPUT, OUTPUT = (TensorSpec(name, "float32", ("batch", WIDTH)) for name in ("input", "output"))
CONTRACT = Contract("warm-up", (INPUT,), (OUTPUT,), {"batch": Range(1, 8)})


def once(export: Callable[[Program, Path, Options], Exported], options: Options) -> None:
    """Export a small program, unless that was done on this machine with the same compiler and settings."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    compiler = environment.compiler()
    if compiler is None or options.device != "cpu":
        return
    settings = " ".join(map(str, (SHARED, options.portable, options.profiled, *options.inductor)))
    made = Path(cache_dir()) / "objects" / f"{_objects.key(b'', settings, compiler)}.warm"
    if made.exists():
        return
    plain = Options(
        threads=options.threads, portable=options.portable, profiled=options.profiled, inductor=options.inductor
    )
    with tempfile.TemporaryDirectory() as folder:
        export(_small(Path(folder) / "program.pt2"), Path(folder) / "package.pt2", plain)
    made.parent.mkdir(parents=True, exist_ok=True)
    made.touch()


def _small(file: Path) -> Program:
    import torch

    from exporter.model.capture import Program, export_program
    from exporter.model.flattening import FlatModule, flatten_inputs

    model, example = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()), torch.zeros(2, WIDTH)
    module = FlatModule(model, flatten_inputs(model, {"input": example})).eval()
    torch.export.save(export_program(module, (example,), CONTRACT), file)
    return Program(CONTRACT, "cpu", lambda: module, lambda: (example,), file)
