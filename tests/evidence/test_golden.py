"""Goldens: eager's outputs, in its own precision and in float64, at every planned size."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support import goldens

from exporter.core import time_limit, tolerances
from exporter.core.errors import ArtifactError, ExportError
from exporter.core.parity_records import CaseRecord, Tolerance
from exporter.core.size_range import Range
from exporter.evidence import eager, golden, make_golden, perturbations
from exporter.evidence.findings import Findings
from exporter.model import tensor_files
from exporter.model.flattening import FlatModule, flatten_inputs
from exporter.model.tensors import Tensors

TOLERANCE = Tolerance(1e-4, 1e-5, 2.0)
SYMBOLS = {"batch": Range(1, 8)}


def inputs(sizes: dict[str, int], seed: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(sizes["batch"], 4, generator=generator),)


def make(model: torch.nn.Module, *plan: tuple[int, int], whole: tuple[str, ...] = ()) -> tuple[golden.Golden, Findings]:
    sizes = [({"batch": batch}, seed) for batch, seed in plan or ((2, 0), (2, 1), (3, 0))]
    module = FlatModule(model, flatten_inputs(model, inputs(*sizes[0]))).eval()
    return make_golden.make(module, inputs, make_golden.Plan(sizes, SYMBOLS, whole), tolerances.of_outputs(()), "cpu")


VALUES = tuple(f"batch=2 {change}" for change in ("zeros", "ones", "negative", "large", "tiny"))


def test_cases_hold_outputs_of_eager_and_float64() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    made, findings = make(model)
    assert tuple(map(str, findings.cases)) == ("batch=2", "batch=2 seed 1", "batch=3", *VALUES)
    assert (findings.reference, findings.unsteady, findings.notes) == ("float64", "", ())
    case = made.cases[2]
    assert (case.eager[0].dtype, case.reference[0].dtype) == (torch.float32, torch.float64)
    exact = case.inputs[0].double() @ model.weight.double().T + model.bias.double()
    assert torch.equal(case.reference[0], exact)
    assert torch.equal(case.eager[0], model(case.inputs[0]))
    assert findings.eager_rmse is not None
    assert 0 < findings.eager_rmse < 1e-6


def test_the_model_is_restored() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)).eval()
    before = {name: (tensor.data_ptr(), tensor.clone()) for name, tensor in model.state_dict().items()}
    make(model)
    for name, tensor in model.state_dict().items():
        assert tensor.data_ptr() == before[name][0]
        assert torch.equal(tensor, before[name][1])
    assert torch.get_default_dtype() == torch.float32


class InPlace(torch.nn.Module):
    """Changes its input in place, visibly to its caller."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.add_(1.0) * 2.0


def test_a_model_that_changes_its_input_does_not_change_the_golden() -> None:
    made, findings = make(InPlace())
    assert not findings.unsteady
    for case in made.cases:
        assert torch.equal(case.eager[0], (case.inputs[0] + 1.0) * 2.0), case.name
        assert torch.allclose(case.reference[0], (case.inputs[0].double() + 1.0) * 2.0)


class NeedsFloat32(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype != torch.float32:
            raise RuntimeError("expected scalar type Float")
        return x * 2


def test_a_model_that_does_not_run_in_float64_is_its_own_reference() -> None:
    made, findings = make(NeedsFloat32())
    assert findings.reference == "eager"
    assert findings.eager_rmse == 0
    assert torch.equal(made.cases[0].reference[0], made.cases[0].eager[0].double())
    assert torch.get_default_dtype() == torch.float32


class Spectral(torch.nn.Module):
    """Multiplies Fourier coefficients by complex weights, as a Fourier neural operator does."""

    phase: torch.Tensor

    def __init__(self, where: Callable[[torch.Tensor], torch.Tensor] = torch.fft.irfft) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = torch.nn.Parameter(torch.rand(3, 3, dtype=torch.complex64))
        self.register_buffer("phase", torch.rand(3, dtype=torch.complex64))
        self.where = where

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.where(torch.fft.rfft(x) @ self.weight * self.phase)


def test_complex_weights_and_outputs_have_references_in_float64() -> None:
    for where, dtype in ((torch.fft.irfft, torch.float64), (torch.conj, torch.complex128)):
        model = Spectral(where)
        made, findings = make(model)
        assert findings.reference == "float64"
        assert findings.eager_rmse is not None
        assert 0 < findings.eager_rmse < 1e-6
        assert tuple(map(str, findings.cases)) == ("batch=2", "batch=2 seed 1", "batch=3", *VALUES)
        case = made.cases[2]
        assert case.reference[0].dtype == dtype
        wide = torch.fft.rfft(case.inputs[0].double()) @ model.weight.to(torch.complex128)
        torch.testing.assert_close(case.reference[0], where(wide * model.phase), rtol=1e-12, atol=1e-12)
        assert (model.weight.dtype, model.phase.dtype) == (torch.complex64, torch.complex64)


def test_complex_inputs_are_widened_too() -> None:
    model, data = torch.nn.Linear(4, 3, dtype=torch.complex64), (torch.randn(2, 4, dtype=torch.complex64),)
    module = FlatModule(model, flatten_inputs(model, data)).eval()
    outputs = eager.run(module, data, "cpu")
    (found,), kind = eager.references(module, [data], [outputs])
    assert kind == "float64"
    exact = data[0].to(torch.complex128) @ model.weight.to(torch.complex128).T + model.bias.to(torch.complex128)
    torch.testing.assert_close(found[0], exact, rtol=1e-12, atol=1e-12)
    assert not torch.equal(found[0], outputs[0].to(torch.complex128))


def test_a_complex_number_beyond_its_dtype_is_eagers_own() -> None:
    most = torch.finfo(torch.float32).max
    own = torch.tensor([complex(most, 1), complex(1, 2), complex(float("inf"), 1)])
    wide = torch.tensor([complex(1e300, 3), complex(4, 5), complex(1e300, 6)], dtype=torch.complex128)
    (found,) = eager.widen((wide,), (own,))
    assert found.tolist() == [complex(most, 3), complex(4, 5), complex(1e300, 6)]


class FailsAtZeros(torch.nn.Module):
    """Fails at zeros in float64 alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.float64 and not x.any():
            raise ValueError("zeros")
        return x * 2


def test_an_unusual_case_without_a_float64_reference_is_left_out_with_a_note() -> None:
    made, findings = make(FailsAtZeros())
    assert findings.reference == "float64"
    assert "batch=2 zeros" not in [case.name for case in made.cases]
    assert "batch=2 ones" in [case.name for case in made.cases]
    assert findings.notes == ("batch=2 zeros was not checked, because the model fails there in float64",)


class OtherShapes(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.dtype == torch.float32 else x[:1]


def test_float64_with_other_shapes_is_not_a_reference() -> None:
    assert make(OtherShapes())[1].reference == "eager"


class Masks(torch.nn.Module):
    """Masks scores as CANINE does: in float64, the least number times a mask in float32 is NaN."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        masked = (1.0 - torch.ones(x.shape[1])).float() * torch.finfo(x.dtype).min
        return (x + masked).softmax(-1)


def test_float64_with_nan_where_eager_is_finite_is_not_a_reference() -> None:
    made, findings = make(Masks())
    assert findings.reference == "eager"
    assert all(case.reference[0].isfinite().all() for case in made.cases)


class Limits(torch.nn.Module):
    """Marks boxes outside an image with the greatest number, as RT-DETR does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 0, torch.finfo(x.dtype).max, x)


def test_the_limits_of_a_dtype_are_no_error_of_eager() -> None:
    made, findings = make(Limits())
    assert (findings.reference, findings.eager_rmse) == ("float64", 0.0)
    assert made.cases[0].reference[0].max() == torch.finfo(torch.float32).max


class Mixed(torch.nn.Module):
    """Takes float64, and returns float64 and what it computes in float32."""

    def __init__(self, unsteady: bool = False) -> None:
        super().__init__()
        self.linear, self.unsteady = torch.nn.Linear(4, 3), unsteady

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.linear(x.float())
        return x.sum(-1), y + torch.rand_like(y) if self.unsteady else y


def test_each_output_has_the_tolerance_of_its_dtype(tmp_path: Path) -> None:
    """Values at which the float32 output has only its rounding error are cases too."""

    def make_mixed(model: torch.nn.Module) -> tuple[golden.Golden, Findings]:
        def data(sizes: dict[str, int], seed: int) -> tuple[torch.Tensor, ...]:
            return tuple(x.double() for x in inputs(sizes, seed))

        torch.manual_seed(0)
        module = FlatModule(model, flatten_inputs(model, data({"batch": 2}, 0))).eval()
        plan = make_golden.Plan([({"batch": 2}, 0)], SYMBOLS)
        return make_golden.make(module, data, plan, tolerances.of_outputs({"float64", "float32"}), "cpu")

    made, findings = make_mixed(Mixed())
    assert [case.name for case in made.cases] == ["batch=2", *VALUES]
    assert (made.tolerance, findings.tolerance) == (tolerances.FLOAT64, tolerances.FLOAT64)
    assert made.tolerances == findings.tolerances == {"float32": tolerances.FLOAT32}
    golden.save(replace(made, precisions={"bf16": golden.Precision(TOLERANCE)}), tmp_path / "golden.safetensors")
    read = golden.read(tmp_path / "golden.safetensors")
    assert (read.tolerance, read.tolerances) == (made.tolerance, made.tolerances)
    assert (read.of("bf16").tolerance, read.of("bf16").tolerances) == (TOLERANCE, {})
    made, _ = make_mixed(Mixed(unsteady=True))
    assert (made.tolerance.k, made.tolerances["float32"].k) == (0, 0)


class Random(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x)


def test_a_random_model_is_reported() -> None:
    findings = make(Random())[1]
    assert findings.unsteady == "the model draws random numbers"


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return x * self.count


def test_a_model_that_changes_a_buffer_at_each_call_is_reported() -> None:
    findings = make(Counter())[1]
    assert findings.unsteady == "the model changes its count at each call"


@pytest.mark.parametrize(("factor", "kernels"), [(1e-9, True), (1.0, False)], ids=["nearly", "clearly"])
def test_a_model_that_reads_the_clock(factor: float, kernels: bool) -> None:
    ticks = itertools.count()

    class Clock(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.double() + factor * next(ticks)

    unsteady = make(Clock())[1].unsteady
    assert "uses the clock, Python's random numbers" in unsteady
    assert ("a kernel is not deterministic" in unsteady) == kernels


def test_changing_attributes_are_reported_by_name() -> None:
    class Remembers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steps, self.history, self.scale = 0, [], 2.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.steps += 1
            self.history.append(x.mean())
            return x * self.scale + torch.stack(self.history).sum()

    plan, tolerance = make_golden.Plan([({"batch": 2}, 0)], {}), tolerances.of_outputs(())
    _, findings = make_golden.make(Remembers(), lambda sizes, seed: (torch.ones(2, 3),), plan, tolerance, "cpu")
    assert findings.unsteady.startswith("the model changes its steps, history.")


def test_values_for_which_a_model_does_not_end_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Louder(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            while bool(x.abs().max() < 0.01):
                x = x * 2
            return x

    monkeypatch.setattr(time_limit, "LEAST_S", 0.3)
    monkeypatch.setattr(time_limit, "TIMES", 0)  # of the first call, whose time depends on what else runs
    made, findings = make(Louder())
    assert findings.notes == ("the model does not return when the values are zeros: a call was stopped after 0 s",)
    assert "batch=2 zeros" not in map(str, findings.cases)
    assert "batch=2 ones" in map(str, findings.cases)
    assert len(made.cases) == len(findings.cases)


class Short(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(4, 4)[: x.shape[0]]


def test_an_unsupported_size_is_named() -> None:
    with pytest.raises(
        ExportError, match=r"the model fails at batch=5: RuntimeError: .*\(.*test_golden.py:\d+\)"
    ) as raised:
        make(Short(), (2, 0), (5, 0))
    assert "--size NAME=MIN..MAX or MIN..MAX..STEP" in raised.value.remedy


class Integers(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.argmax(-1), x > 0


def test_integers_have_no_noise() -> None:
    made, findings = make(Integers())
    assert findings.eager_rmse is None
    assert made.cases[0].reference[0].dtype == torch.int64
    assert made.cases[0].reference[1].dtype == torch.bool


class NotFinite(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 0, x, torch.nan)


def test_nan_is_kept_and_does_not_count_as_noise() -> None:
    made, findings = make(NotFinite())
    assert made.cases[0].eager[0].isnan().any()
    assert not findings.unsteady
    assert findings.eager_rmse == 0


def test_cases_that_are_too_large_are_reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_golden, "CASE_BYTES", 4 * 4 * 5)
    _, findings = make(torch.nn.Linear(4, 3), (2, 0), (8, 0), (7, 0))
    assert tuple(map(str, findings.cases)) == ("batch=2", "batch=4", "batch=3", *VALUES)
    assert findings.notes[0] == "batch=8 is too large to check in reasonable time; checked up to batch=4"


def test_a_case_requested_by_the_user_is_not_reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_golden, "CASE_BYTES", 4 * 4 * 5)
    made, findings = make(torch.nn.Linear(4, 3), (2, 0), (8, 0), whole=("batch=8",))
    assert tuple(map(str, findings.cases)) == ("batch=2", "batch=8", *VALUES)
    assert made.cases[1].inputs[0].shape == (8, 4)
    assert not findings.notes


def test_a_large_example_is_run_anyway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_golden, "CASE_OPERATIONS", 0)
    assert tuple(map(str, make(torch.nn.Linear(4, 3), (2, 0))[1].cases)) == ("batch=2", *VALUES)


@pytest.mark.parametrize("write", [golden.save, goldens.pickled])
@pytest.mark.parametrize("step", [None, 0])
def test_round_trip(tmp_path: Path, write: Callable[[golden.Golden, Path], None], step: int | None) -> None:
    made, _ = make(torch.nn.Linear(4, 3))
    cases = tuple(replace(case, record=replace(case.record, step=step)) for case in made.cases)
    half = golden.Precision(TOLERANCE, tuple(case.eager for case in cases), (cases[1].name,))
    spoilt = golden.NonFinite((0,), ("x",), "NaN", (torch.tensor(1, dtype=torch.int8),))
    made = golden.Golden(cases, made.tolerance, {"bf16": half}, (spoilt,))
    write(made, tmp_path / "golden")
    read = golden.read(tmp_path / "golden")
    assert (read.tolerance, read.precisions.keys()) == (made.tolerance, made.precisions.keys())
    assert read.precisions["bf16"].without == half.without
    assert read.nonfinite is not None
    assert (read.nonfinite[0].inputs, read.nonfinite[0].names, read.nonfinite[0].value) == ((0,), ("x",), "NaN")
    assert torch.equal(read.nonfinite[0].expected[0], spoilt.expected[0])
    for a, b, own in zip(read.cases, made.cases, read.precisions["bf16"].eager, strict=True):
        assert a.record == b.record
        for x, y in zip(
            a.inputs + a.eager + a.reference + own, b.inputs + b.eager + b.reference + b.eager, strict=True
        ):
            assert torch.equal(x, y)
            assert x.dtype == y.dtype


DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32,
    torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex32, torch.complex64,
    torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
)  # fmt: skip


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_tensors_of_every_dtype_and_shape(tmp_path: Path) -> None:
    given = [torch.ones(shape).to(dtype) for dtype in DTYPES for shape in ((), (0, 3), (2, 3))]
    given += [torch.arange(6.0).reshape(2, 3).t(), torch.ones(1).expand(4), torch.full((2,), 1 + 2j).conj()]
    case = golden.Case(CaseRecord("a"), tuple(given), (), ())
    golden.save(golden.Golden((case,), TOLERANCE), tmp_path / "golden.safetensors")
    read = golden.read(tmp_path / "golden.safetensors").cases[0].inputs
    for x, y in zip(read, given, strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        wide = torch.complex128 if y.is_complex() else y.dtype
        assert x.to(wide).tolist() == y.to(wide).tolist()
    again = tmp_path / "again.safetensors"
    golden.save(golden.Golden((case,), TOLERANCE), again)
    assert again.read_bytes() == (tmp_path / "golden.safetensors").read_bytes()


def test_a_view_is_saved_without_the_rest_of_its_storage(tmp_path: Path) -> None:
    big = torch.zeros(1_000_000)[:2]
    golden.save(
        golden.Golden((golden.Case(CaseRecord("a"), (big,), (big,), (big,)),), TOLERANCE),
        tmp_path / "golden.safetensors",
    )
    assert (tmp_path / "golden.safetensors").stat().st_size < 100_000


def written(path: Path, schema: int = 1, **changes: Any) -> Path:
    """Write a golden without cases: a pickle for schemas 1 and 2, else safetensors."""
    data: dict[str, Any] = {"schema": schema, "tolerance": {"rtol": 1e-4, "atol": 1e-5, "k": 2.0}, "cases": []}
    if schema in golden.PICKLED:
        torch.save(data | changes, path)
    else:
        tensor_files.save({"x": torch.ones(1)}, path, data | changes)
    return path


@pytest.mark.parametrize("schema", [1, 3])
@pytest.mark.parametrize(
    "changes", [{"schema": 4}, {"cases": [{}]}, {"cases": 3}, {"tolerance": {}}, {"tolerance": None}]
)
def test_malformed_goldens_raise(tmp_path: Path, schema: int, changes: dict[str, Any]) -> None:
    with pytest.raises(ArtifactError, match=r"golden\.safetensors"):
        golden.read(written(tmp_path / "golden.safetensors", **{"schema": schema, **changes}))


def test_a_golden_with_a_missing_tensor_raises(tmp_path: Path) -> None:
    case = {"name": "a", "inputs": 2, "eager": 0, "reference": 0}
    path = tmp_path / "golden.safetensors"
    tensor_files.save({"cases.0.inputs.0": torch.ones(1)}, path, {"schema": 3, "cases": [case]})
    with pytest.raises(ArtifactError, match=r"cannot be read as a golden: 'cases\.0\.inputs\.1'"):
        golden.read(path)


def test_reading_a_golden_runs_no_code(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "sprung",))

    with pytest.raises(ArtifactError, match="cannot be read as a golden"):
        golden.read(written(tmp_path / "golden.safetensors", cases=[Trap()]))
    assert not (tmp_path / "sprung").exists()


def test_missing_or_truncated_goldens_raise(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="cannot be read as a golden"):
        golden.read(tmp_path / "golden.safetensors")
    for schema in (1, 3):
        whole = written(tmp_path / "golden.safetensors", schema).read_bytes()
        (tmp_path / "golden.safetensors").write_bytes(whole[: len(whole) // 2])
        with pytest.raises(ArtifactError, match=r"export again|cannot be read"):
            golden.read(tmp_path / "golden.safetensors")


def test_a_precision_that_leaves_out_a_step_leaves_out_later_steps() -> None:
    x = torch.ones(1)
    names = [("a", 0), ("a step 2", 1), ("a step 3", 2), ("b", 0), ("b step 2", 1), ("c", None)]
    made = tuple(golden.Case(CaseRecord(name, step=step), (x,), (x,), (x.double(),)) for name, step in names)
    whole = golden.Golden(made, TOLERANCE, {"bf16": golden.Precision(TOLERANCE, (), ("a step 2", "c"))})
    assert [case.name for case in whole.of("bf16").cases] == ["a", "b", "b step 2"]


class Offsets(torch.nn.Module):
    """Accepts only increasing integers, as an embedding bag does; with `broken`, none at all."""

    def __init__(self, broken: bool = False) -> None:
        super().__init__()
        self.broken = broken

    def forward(self, x: torch.Tensor, offsets: torch.Tensor) -> Tensors:
        if self.broken or bool((offsets.diff() < 0).any()):
            raise IndexError("offsets must increase")
        return (x.sum() + offsets,)


def test_integers_that_a_cpu_rejects_are_not_tried_on_a_gpu() -> None:
    example = (torch.ones(3), torch.tensor([1, 2, 4]))
    changes = perturbations.changed(example)
    assert "negative" in changes  # it reverses integers
    device = "cpu:0"  # instead of a GPU
    safe = eager.safe_on_gpu(Offsets(), example, changes, device)
    assert safe.keys() == changes.keys() - {"negative"}
    assert eager.safe_on_gpu(Offsets(broken=True), example, changes, device) == changes
    floats = {"large": (example[0] * 100, example[1])}
    assert eager.safe_on_gpu(Offsets(broken=True), example, floats, device) == floats
    assert eager.safe_on_gpu(Offsets(), example, changes, "cpu") == changes
