"""A program that was saved, as a model to export again: TorchScript (`.pt`) or an ExportedProgram (`.pt2`).

What a file is, its content tells, whatever its name. Names, sizes and ranges are those of exporter's own contract where
the file carries one; else an ExportedProgram's range constraints, or the batch that the tensors of --inputs have in
common. --dim names them otherwise.
"""

from __future__ import annotations

from pathlib import Path

from exporter.core.contract import specialized
from exporter.core.contract_files import read_zip
from exporter.core.contract_records import Contract
from exporter.core.errors import ArtifactError, RecipeError
from exporter.model.recipes import Recipe, Source
from exporter.model.sources import _saved_exported, _saved_files, _saved_scripted

summary = "path/to/model.pt (TorchScript, under any name) or path/to/program.pt2 (ExportedProgram)"


def recipe(name: str, source: Source) -> Recipe:
    """The recipe of the file `name`. RecipeError for a file that holds no program, and where its inputs are unknown."""
    path = Path(name)
    kind = _saved_files.kind(path)
    contract = _contract(path)
    if kind == _saved_files.EXPORTED:
        return _saved_exported.recipe(path, contract, source)
    return _saved_scripted.recipe(path, contract, source)


def _contract(path: Path) -> Contract | None:
    """exporter's own contract, where the file carries one."""
    try:
        contract = read_zip(path)
    except ArtifactError:
        return None
    if specialized(contract):
        raise RecipeError(
            f"{path} has one entry for each size of {specialized(contract)}, of which none takes another",
            "export it without --specialize, and give that",
        )
    return contract
