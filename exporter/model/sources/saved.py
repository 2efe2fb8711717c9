"""A saved program as a model to export again: TorchScript (`.pt`) or an ExportedProgram (`.pt2`).

The content of a file, not its name, determines its kind. Names, sizes and ranges come from exporter's contract if the
file has one, and otherwise from an ExportedProgram's range constraints or from the batch that the tensors of --inputs
have in common. --dim overrides them.
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
    """Return the recipe of the file `name`. Raises RecipeError if it holds no program or its inputs are unknown."""
    path = Path(name)
    kind = _saved_files.kind(path)
    contract = _contract(path)
    if kind == _saved_files.EXPORTED:
        return _saved_exported.recipe(path, contract, source)
    return _saved_scripted.recipe(path, contract, source)


def _contract(path: Path) -> Contract | None:
    """Return exporter's contract, or None if the file has none. Raises RecipeError for a specialized artifact."""
    try:
        contract = read_zip(path)
    except ArtifactError:
        return None
    if specialized(contract):
        raise RecipeError(
            f"{path} has a separate entry for each size of {specialized(contract)}, and no entry takes another size",
            "export it without --specialize, and give that file",
        )
    return contract
