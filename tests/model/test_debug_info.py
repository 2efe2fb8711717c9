"""Source locations in a TorchScript archive."""

from __future__ import annotations

import inspect
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from exporter.model.torchscript import debug_info

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:FutureWarning")


class Halves(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # größer: offsets are counted in bytes
        return x[:2] + x[2:]


LINE = inspect.getsourcelines(Halves.forward)[1] + 2


def saved(module: Any, path: Path, save: Callable[[Any, Any, dict[str, str]], None] = debug_info.save) -> str:
    """Save the module; return the message of a call that fails in the loaded archive."""
    save(module, path, {"contract.json": "{}"})
    with pytest.raises(RuntimeError) as caught:
        torch.jit.load(str(path))(torch.ones(5))
    return str(caught.value).partition("original code")[2]


def test_an_error_in_a_trace_names_the_models_line_without_folders(tmp_path: Path) -> None:
    said = saved(torch.jit.trace(Halves(), torch.ones(4)), tmp_path / "halves.pt")
    assert said.splitlines()[1] == f"{Path(__file__).name}({LINE}): forward"
    assert "_trace.py" not in said
    assert str(Path(__file__).parent) not in said


def test_an_error_in_a_script_points_to_the_same_place_as_torchs(tmp_path: Path) -> None:
    module = torch.jit.script(Halves())
    said, usual = saved(module, tmp_path / "halves.pt"), saved(module, tmp_path / "usual.pt", torch.jit.save)
    assert said == usual.replace(str(Path(__file__).parent) + "/", "") != usual
    assert "x[:2] + x[2:]" in said
    assert " <--- HERE" in said


def test_only_the_debug_information_differs_from_torchs_archive(tmp_path: Path) -> None:
    module = torch.jit.trace(torch.nn.Linear(3, 3), torch.ones(1, 3))
    debug_info.save(module, tmp_path / "linear.pt", {"contract.json": "{}"})
    (tmp_path / "usual").mkdir()
    torch.jit.save(module, str(tmp_path / "usual" / "linear.pt"), _extra_files={"contract.json": "{}"})
    members = []
    for path in (tmp_path / "linear.pt", tmp_path / "usual" / "linear.pt"):
        with zipfile.ZipFile(path) as archive:
            members.append({n: archive.read(n) for n in archive.namelist() if not n.endswith("serialization_id")})
    mine, usual = members
    assert mine.keys() == usual.keys()
    assert {name for name in usual if mine[name] != usual[name]} == {n for n in usual if n.endswith(".debug_pkl")}
    assert [path.name for path in tmp_path.glob("*.pt")] == ["linear.pt"]


def test_an_unknown_format_is_not_changed() -> None:
    data = pickle.dumps(("FORMAT_OF_LATER", (), ()), protocol=2)
    assert debug_info.portable(data) == data
