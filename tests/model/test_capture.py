"""torch.export, once for all targets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention

from exporter.core.contract_records import Contract, TensorSpec
from exporter.core.errors import ExportError
from exporter.core.size_range import Range
from exporter.evidence import eager
from exporter.model import capture, precision
from exporter.model.capture import Program
from exporter.model.flattening import FlatModule, flatten_inputs
from exporter.model.no_program import NoProgram


def contract(*shape: Any, symbols: dict[str, Range] | None = None) -> Contract:
    ranges = {"batch": Range(1, 8)} if symbols is None else symbols
    return Contract("m", (TensorSpec("x", "float32", shape),), (), ranges)


def flat(model: torch.nn.Module, *example: torch.Tensor) -> FlatModule:
    return FlatModule(model, flatten_inputs(model, example)).eval()


def test_export_keeps_dimensions_dynamic() -> None:
    module = flat(torch.nn.Linear(4, 2), torch.ones(2, 4))
    program = capture.export_program(module, (torch.ones(2, 4),), contract("batch", 4))
    run = program.module()
    for batch in (1, 2, 8):
        (y,) = run(torch.ones(batch, 4))
        assert y.shape == (batch, 2)


def test_a_static_size_stays_fixed() -> None:
    module = flat(torch.nn.Linear(4, 2), torch.ones(2, 4))
    fixed = contract("batch", 4, symbols={"batch": Range(2, 2)})
    program = capture.export_program(module, (torch.ones(2, 4),), fixed)
    assert program.module()(torch.ones(2, 4))[0].shape == (2, 2)


@pytest.mark.parametrize("name", ["N", "len", "beta", "length"])
def test_sizes_may_have_names_that_mean_something_to_sympy(name: str) -> None:
    class Masked(torch.nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return x * mask[:, ::2]

    specs = (TensorSpec("x", "float32", (2, name)), TensorSpec("mask", "float32", (2, f"2*{name}")))
    example = (torch.ones(2, 5), torch.ones(2, 10))
    promised = Contract("m", specs, (), {name: Range(2, 50)})
    program = capture.export_program(flat(Masked(), *example), example, promised)
    assert program.module()(torch.ones(2, 9), torch.ones(2, 18))[0].shape == (2, 9)


class Attending(torch.nn.Module):
    def forward(self, x: torch.Tensor, memory: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.cat([memory, x], 1) + mask


def test_the_sum_of_two_sizes_stays_one() -> None:
    dims = {"x": "new", "memory": "past", "mask": "new+past"}
    specs = tuple(TensorSpec(name, "float32", (2, dim)) for name, dim in dims.items())
    example = tuple(torch.ones(2, size) for size in (3, 5, 8))
    promised = Contract("m", specs, (), {"new": Range(1, 16), "past": Range(1, 64)})
    made = capture.capture(flat(Attending(), *example), example, promised)
    run = made.program.module(check_guards=False)
    assert not made.fixed
    for new, past in ((1, 1), (16, 64), (1, 9)):
        assert run(*(torch.ones(2, size) for size in (new, past, new + past)))[0].shape == (2, new + past)


def test_a_sum_of_fixed_sizes_is_fixed() -> None:
    specs = tuple(TensorSpec(name, "float32", (2, dim)) for name, dim in (("x", "new"), ("mask", "new+past")))
    promised = Contract("m", specs, (), {"new": Range(3, 3), "past": Range(5, 5)})
    assert capture._dim("new+past", {}) is None
    program = capture.export_program(
        flat(torch.nn.Bilinear(3, 8, 1), torch.ones(2, 3), torch.ones(2, 8)),
        (torch.ones(2, 3), torch.ones(2, 8)),
        promised,
    )
    assert [node.meta["val"].shape for node in program.graph.find_nodes(op="placeholder")][-1] == (2, 8)


def test_a_dimension_without_a_name_is_dynamic() -> None:
    module = flat(torch.nn.ReLU(), torch.ones(2, 6))
    program = capture.export_program(module, (torch.ones(2, 6),), contract("batch", None))
    assert program.module()(torch.ones(3, 9))[0].shape == (3, 9)


@pytest.mark.parametrize("step", [1, 8])
def test_a_size_of_1_or_2_steps_is_not_fixed(step: int) -> None:
    """torch.export treats 1 as a constant; a range from 2 to 2 would be one too."""
    module = flat(torch.nn.ReLU(), torch.ones(2 * step, 6))
    narrow = contract("batch", 6, symbols={"batch": Range(step, 2 * step, multiple_of=step)})
    made = capture.capture(module, (torch.ones(2 * step, 6),), narrow)
    run = made.program.module(check_guards=False)
    assert [run(torch.ones(n * step, 6))[0].shape[0] for n in (1, 2)] == [step, 2 * step]
    (placeholder,) = made.program.graph.find_nodes(op="placeholder")
    assert isinstance(placeholder.meta["val"].shape[0], torch.SymInt)
    assert not made.fixed


class Branch(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


def test_an_error_of_torch_export_is_one_line() -> None:
    with pytest.raises(ExportError, match=r"^torch\.export: .") as raised:
        capture.export_program(flat(Branch(), torch.ones(2, 4)), (torch.ones(2, 4),), contract("batch", 4))
    assert "\n" not in str(raised.value)


def program(tmp_path: Path) -> Program:
    module = flat(torch.nn.Linear(4, 2), torch.ones(2, 4))
    return Program(contract("batch", 4), "cpu", lambda: module, lambda: (torch.ones(2, 4),), tmp_path / "exported.pt2")


def test_a_program_creates_its_parts_once_and_on_demand(tmp_path: Path) -> None:
    made = program(tmp_path)
    assert made.loading_s == 0
    assert made.module is made.module
    spent = made.loading_s
    assert spent > 0
    assert made.example is made.example
    assert made.loading_s > spent
    assert not made.used_capture


def test_a_captured_program(tmp_path: Path) -> None:
    made = program(tmp_path)
    torch.export.save(capture.export_program(made.module, made.example, made.contract), made.exported_file)
    assert made.exported.module()(torch.ones(5, 4))[0].shape == (5, 2)
    assert made.used_capture


def test_a_program_that_was_not_captured_has_a_reason(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="was not captured"):
        _ = program(tmp_path).exported
    NoProgram("torch.export: a branch on data").write(tmp_path / "exported.pt2")
    with pytest.raises(ExportError, match="a branch on data"):
        _ = program(tmp_path).exported


def test_derived_dimensions_survive_a_file(tmp_path: Path) -> None:
    """A program loaded with torch.export.load could not be decomposed, which ONNX needs."""
    example = (torch.ones(6, 4), torch.ones(2))

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x.sum(0) * y.sum()

    promise = Contract(
        "m",
        (TensorSpec("x", "float32", ("3*batch", 4)), TensorSpec("y", "float32", ("batch",))),
        (),
        {"batch": Range(1, 8)},
    )
    torch.export.save(capture.export_program(flat(Model(), *example), example, promise), tmp_path / "program.pt2")
    module = capture.load_program(tmp_path / "program.pt2").run_decompositions().module()
    assert module(torch.ones(9, 4), torch.ones(3))[0].tolist() == [27.0] * 4


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        ({"x": torch.ones(2, 4)}, "arguments of the model's forward"),
        ({}, "arguments of the model's forward"),
        ({"input": torch.ones(2, 5)}, "promise only sizes"),
    ],
)
def test_an_error_of_the_model_has_a_remedy(arguments: dict[str, torch.Tensor], remedy: str) -> None:
    with pytest.raises(ExportError, match="the model fails at batch=2") as raised, eager.naming("batch=2"):
        torch.nn.Linear(4, 2)(**arguments)
    assert remedy in raised.value.remedy


class Masked(torch.nn.Module):
    def forward(self, input: torch.Tensor, mask: torch.Tensor | None = None, **others: int) -> torch.Tensor:
        return input if mask is None else input * mask


def test_misnamed_inputs_get_the_names_of_the_arguments() -> None:
    model = Masked()
    with pytest.raises(ExportError) as raised, eager.naming("batch=2", model):
        model(x=torch.ones(2))
    assert raised.value.remedy == (
        "name the inputs like the arguments of the model's forward, which takes input, mask=…, **others"
    )


class Flexible(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def near(score: torch.Tensor, batch: Any, head: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
            return torch.where(query >= key, score - 0.1 * (query - key), -float("inf"))

        found: torch.Tensor = flex_attention.flex_attention(x, x, x, score_mod=near)  # compiles a graph of its own
        return found


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_flex_attention_keeps_its_sizes() -> None:
    x = torch.randn(2, 2, 9, 16)
    symbols = {"batch": Range(1, 4), "length": Range(2, 32)}
    found = capture.capture(flat(Flexible(), x), (x,), contract("batch", 2, "length", 16, symbols=symbols))
    assert found.fixed == ()
    assert "length" not in found.bounds


def test_the_model_calls_an_operator_of_no_library() -> None:
    with pytest.raises(ExportError, match="the model fails at batch=2") as raised, eager.naming("batch=2"):
        torch.ops.nowhere.near(torch.ones(2))
    assert "--ops-lib" in raised.value.remedy


class Images(torch.nn.Module):
    """Has a buffer that is a view, as most models that normalize images do."""

    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.4, 0.5]).view(2, 1))
        self.register_buffer("same", self.mean)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return ((x.float() - self.mean) / 0.5 * self.same,)


def test_a_buffer_that_is_a_view_in_a_half_precision() -> None:
    module, x = Images(), torch.ones(2, 3)
    before = module.mean
    contract = Contract("m", (TensorSpec("x", "float32", (2, 3)),), (TensorSpec("y", "float32", (2, 3)),), {})
    cast = precision.cast(module, "bf16", ("float32",))
    program = capture.export_program(cast, (x,), contract).module()
    assert module.mean is module.same is before
    assert torch.equal(program(x)[0], cast(x)[0])
