"""The script target: natively with nested inputs and outputs, through the exported graph if that is wrong.

TorchScript needs evaluated annotations in a NamedTuple, so this module does not postpone them.
"""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import pytest
import torch
from torch import nn

from exporter.core.contract_records import Contract, TensorSpec
from exporter.core.errors import ExportError
from exporter.core.size_range import Range
from exporter.model import capture, flattening
from exporter.model.capture import Program
from exporter.model.flattening import FlatModule, flatten_inputs, output_leaves
from exporter.model.no_program import NoProgram
from exporter.model.torchscript import interpreter
from exporter.targets import Options, script

OPTIONS = Options(threads=1)
Make = Callable[[int], Any]


def program(model: nn.Module, inputs: Any, folder: Path, captured: bool) -> Program:
    """Return the program of a model at its example inputs; the first dimension of every tensor is a dynamic batch."""
    flat = flatten_inputs(model, inputs)
    module = FlatModule(model.eval(), flat).eval()
    args, kwargs = flat.rebuild([t.clone() for t in flat.tensors])
    names, _ = output_leaves(copy.deepcopy(model)(*args, **kwargs))
    specs = [
        (n, flattening.dtype_name(t.dtype), ("batch", *t.shape[1:]))
        for n, t in zip(flat.names, flat.tensors, strict=True)
    ]
    promised = Contract(
        "m", tuple(TensorSpec(*s) for s in specs), tuple(TensorSpec(n, "", ()) for n in names), {"batch": Range(1, 16)}
    )
    file = folder / "exported.pt2"
    if captured:
        torch.export.save(capture.export_program(module, flat.tensors, promised), file)
    else:
        NoProgram("torch.export: not asked for").write(file)
    return Program(promised, "cpu", lambda: module, lambda: flat.tensors, file)


def check(model: nn.Module, make: Make, folder: Path, captured: bool = False) -> tuple[str, Any]:
    """Export at a batch of 2, compare with eager at several batches, and return the notes and `run`."""
    path = folder / "script.pt"
    notes = script.export(program(model, make(2), folder, captured), path, OPTIONS).notes
    for batch in (2, 1, 5):
        flat = flatten_inputs(model, make(batch))
        args, kwargs = flat.rebuild([t.clone() for t in flat.tensors])
        wanted = output_leaves(copy.deepcopy(model)(*args, **kwargs))[1]
        got = script.load(path, OPTIONS).run(flat.tensors)
        assert [(g.shape, g.dtype) for g in got] == [(w.shape, w.dtype) for w in wanted]
        assert all(torch.equal(g, w) for g, w in zip(got, wanted, strict=True))
    return "; ".join(notes), script.load(path, OPTIONS).run


class Gate(nn.Module):
    def forward(self, x: torch.Tensor, scale: float = 2.0) -> tuple[torch.Tensor, torch.Tensor]:
        return (x * scale, x.sum(1)) if bool(x.sum() > 0) else (-x, x.sum(1))


def test_torchscript_is_not_scripted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.jit.save(torch.jit.script(Gate()), str(tmp_path / "gate.jit"))
    model = interpreter.taken_over(torch.jit.load(str(tmp_path / "gate.jit")))
    monkeypatch.setattr(interpreter.Interpreter, "__prepare_scriptable__", None)
    note, run = check(model, lambda batch: {"x": torch.randn(batch, 4)}, tmp_path)
    assert note == "already TorchScript"
    assert torch.equal(run((-torch.ones(3, 4),))[0], torch.ones(3, 4))


class Pair(NamedTuple):
    """A named output."""

    first: torch.Tensor
    second: torch.Tensor


class Images(nn.Module):
    """Like torchvision's detectors, returns more if scripted, and in another type."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    @torch.jit.unused
    def eager_outputs(
        self,
        losses: Dict[str, torch.Tensor],
        found: List[Dict[str, torch.Tensor]],
    ) -> Tuple[Dict[str, torch.Tensor], List[Dict[str, torch.Tensor]]]:
        return found  # type: ignore[return-value]

    def forward(
        self,
        images: List[torch.Tensor],
        targets: Optional[List[torch.Tensor]] = None,
    ) -> Tuple[Dict[str, torch.Tensor], List[Dict[str, torch.Tensor]]]:
        losses: Dict[str, torch.Tensor] = {}
        found: List[Dict[str, torch.Tensor]] = []
        for image in images:
            y = self.linear(image)
            found.append({"scores": y.sum(1), "boxes": y})
        if torch.jit.is_scripting():
            return losses, found
        return self.eager_outputs(losses, found)


class Nested(nn.Module):
    def forward(
        self,
        batch: Dict[str, torch.Tensor],
        pair: Tuple[torch.Tensor, torch.Tensor],
        masks: List[Tuple[torch.Tensor, int]],
        factor: float,
        flip: bool = False,
        mode: str = "sum",
        bias: Optional[torch.Tensor] = None,
    ) -> Tuple[torch.Tensor, Tuple[torch.Tensor, List[torch.Tensor]], Dict[str, Optional[torch.Tensor]]]:
        x = batch["z"] * factor - batch["a"] + pair[0] * 2 + pair[1]
        for mask, times in masks:
            x = x + mask * times
        if flip:
            x = -x
        if bias is not None:
            x = x + bias
        return x, (x.sum(1) if mode == "sum" else x.mean(1), [x + 1, x + 2]), {"z": x * 3, "none": bias, "a": x * 4}


class Named(nn.Module):
    def forward(self, x: torch.Tensor) -> Tuple[Pair, Optional[torch.Tensor]]:
        return Pair(x + 1, x + 2), x * 2


class Numbers(nn.Module):
    def forward(self, x: torch.Tensor) -> Tuple[torch.Tensor, int, Dict[str, float], bool]:
        return x, x.size(0), {"half": x.size(0) / 2}, x.size(0) > 2


def ramp(batch: int) -> torch.Tensor:
    return torch.arange(batch * 4.0).reshape(batch, 4) - 3


def test_a_list_of_images_with_more_outputs_if_scripted(tmp_path: Path) -> None:
    note, _ = check(Images(), lambda batch: ([ramp(batch), ramp(batch) * 2], None), tmp_path)
    assert note == "scripted natively"


def test_nested_inputs_constants_and_outputs(tmp_path: Path) -> None:
    def make(batch: int) -> dict[str, Any]:
        x = ramp(batch)
        nested = {"batch": {"z": x, "a": x + 1}, "pair": (x + 2, x + 3), "masks": [(x + 4, 2), (x + 5, 3)]}
        return nested | {"factor": 2, "flip": True, "mode": "sum", "bias": None}

    note, _ = check(Nested(), make, tmp_path)
    assert note == "scripted natively"


@pytest.mark.parametrize("model", [Named(), Numbers()], ids=["named", "numbers"])
def test_named_outputs_and_numbers(tmp_path: Path, model: nn.Module) -> None:
    note, _ = check(model, lambda batch: (ramp(batch),), tmp_path)
    assert note == "scripted natively"


class Asks(nn.Module):
    """Returns other values if scripted."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.jit.is_scripting():
            return x + 1
        return x - 1


def test_a_model_that_scripting_changes_goes_through_the_exported_graph(tmp_path: Path) -> None:
    note, _ = check(Asks(), lambda batch: (ramp(batch),), tmp_path, captured=True)
    why = "outputs at the example differ from eager's: output"
    assert note == f"through the exported graph; torch.jit.script fails: {why}"


class Variadic(nn.Module):
    def forward(self, *tensors: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"z": tensors[0] + 1, "a": tensors[0].sum(1)}


def test_a_model_that_cannot_be_scripted_goes_through_the_exported_graph(tmp_path: Path) -> None:
    note, _ = check(Variadic(), lambda batch: (ramp(batch),), tmp_path, captured=True)
    assert note.startswith("through the exported graph; torch.jit.script fails: ")
    assert "variable number of arguments" in note
    assert not note.endswith(":")


class Literal(nn.Module):
    """A tensor literal in a branch, which torch.export.save cannot serialize."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x * torch.tensor([1.0, 2.0, 3.0, 4.0]), lambda x: x - 1, (x,))


def test_a_program_that_cannot_be_saved_is_exported_again(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="tensors should not appear in the graph") as raised:
        program(Literal(), (ramp(2),), tmp_path, captured=True)
    assert type(raised.value).__name__ == "SerializeError"
    made = program(Literal(), (ramp(2),), tmp_path, captured=False)
    NoProgram("torch.export.save: SerializeError: Failed serializing node cond", made=True).write(made.exported_file)
    script.export(made, tmp_path / "script.pt", OPTIONS)
    for x in (ramp(2), ramp(5), -ramp(5)):
        assert torch.equal(script.load(tmp_path / "script.pt", OPTIONS).run((x,))[0], Literal()(x))


def test_both_failures_are_named(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"not asked for; torch\.jit\.script: .*variable number of arguments"):
        check(Variadic(), lambda batch: (ramp(batch),), tmp_path)
    with pytest.raises(ExportError, match=r"not asked for; torch\.jit\.script: outputs at the example"):
        check(Asks(), lambda batch: (ramp(batch),), tmp_path)
    assert not (tmp_path / "script.pt").exists()


def test_the_note_of_a_failure_has_no_address() -> None:
    error = RuntimeError("\n'L (of Python compilation unit at: 0x55acc5e45580)' has no method\nof <function f at 0x7f>")
    assert script._why(error) == "torch.jit.script fails: 'L (of Python compilation unit)' has no method"


class Counter(nn.Module):
    """Counts in a buffer and in a Python number."""

    calls: int

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))
        self.calls = 0

    def forward(self, x: torch.Tensor) -> Tuple[torch.Tensor, int]:
        self.calls += 1
        self.total.add_(x.sum(0))
        x.mul_(2)
        return x + self.total, self.calls


def test_state_starts_at_the_initial_state_and_persists(tmp_path: Path) -> None:
    model = Counter()
    note, run = check(model, lambda batch: (ramp(batch),), tmp_path)
    assert note == "scripted natively"
    assert (model.calls, float(model.total.sum())) == (0, 0.0)
    for batch in (2, 3, 5):
        got, want = run((ramp(batch),)), model(ramp(batch))
        assert torch.equal(got[0], want[0])
        assert int(got[1]) == want[1]


def test_a_module_that_cannot_be_frozen_is_written_unfrozen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(module: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
        raise RuntimeError("no")

    monkeypatch.setattr(torch.jit, "freeze", fails)
    note, _ = check(Named(), lambda batch: (ramp(batch),), tmp_path)
    assert note == "scripted natively; not frozen, because the frozen module is wrong or fails"


def test_an_artifact_that_fails_when_run_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "def forward(self, x: Tensor) -> Tuple[Tensor]:\n    return (x.view(3, 5, 7),)\n"
    monkeypatch.setattr(
        "exporter.model.torchscript.bridge.from_exported", lambda *_: script.codegen.define(nn.Module(), source)
    )
    with pytest.raises(ExportError, match=r"shape '\[3, 5, 7\]' is invalid .*; torch\.jit\.script: "):
        check(Variadic(), lambda batch: (ramp(batch),), tmp_path, captured=True)
    assert not (tmp_path / "script.pt").exists()


class Divides(nn.Module):
    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (x.shape[0] // self.by)


def test_a_division_that_torchscript_rounds_otherwise_goes_through_the_graph(tmp_path: Path) -> None:
    """TorchScript computes floor(n / 1.1), which is larger than Python's n // 1.1 at 11 and 22."""
    assert float(torch.jit.script(Divides(1.1))(torch.ones(11))[0]) == 11 // 1.1 + 1
    made = program(Divides(1.1), {"x": torch.ones(2)}, tmp_path, captured=True)
    (note,) = script.export(made, tmp_path / "script.pt", OPTIONS).notes
    assert note.startswith("through the exported graph; ")
    assert "TorchScript's // of fractions differs from Python's (" in note
    assert "test_script.py:" in note
