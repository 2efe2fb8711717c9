"""Models whose forward computes gradients: force fields, and functions of torch.func."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch
from support.commands import Run

from exporter.core.contract_records import Contract, TensorSpec
from exporter.core.errors import ExportError
from exporter.core.size_range import Range
from exporter.model import capture, differentiation, flattening
from exporter.targets import _tracing


class ForceField(torch.nn.Module):
    """Energies of pairs of atoms, and the forces on the atoms. It leaves recording gradients to its caller."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.SiLU(), torch.nn.Linear(8, 1))

    def forward(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        positions.requires_grad_()
        apart = positions[:, :, None] - positions[:, None]
        distance = (apart.square().sum(-1) + 0.1).sqrt()
        energy = self.pair(distance[..., None]).sum((1, 2, 3))
        (slope,) = torch.autograd.grad([energy.sum()], [positions])
        return energy, -slope


class Recording(ForceField):
    """A force field that records gradients itself."""

    def forward(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.enable_grad():
            energy, forces = super().forward(positions.detach())
        return energy.detach(), forces


class Backward(ForceField):
    """A force field that calls Tensor.backward."""

    def forward(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        positions.requires_grad_()
        distance = ((positions[:, :, None] - positions[:, None]).square().sum(-1) + 0.1).sqrt()
        energy = self.pair(distance[..., None]).sum((1, 2, 3))
        energy.sum().backward(inputs=[positions])
        assert positions.grad is not None
        return energy, -positions.grad


class Saliency(ForceField):
    """The gradient of an energy with respect to what a layer computes, for which weights must require gradients."""

    def forward(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.enable_grad():
            hidden = self.pair[:2](positions[..., :1])
            energy = self.pair[2](hidden).square().sum((1, 2))
            (slope,) = torch.autograd.grad(energy.sum(), hidden)
        return energy.detach(), slope


class Functional(ForceField):
    """A force field that calls torch.func.grad, which records gradients itself."""

    def forward(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        def energy(positions: torch.Tensor) -> torch.Tensor:
            distance = ((positions[:, :, None] - positions[:, None]).square().sum(-1) + 0.1).sqrt()
            total: torch.Tensor = self.pair(distance[..., None]).sum()
            return total

        return energy(positions)[None], -torch.func.grad(energy)(positions)


def flat(kind: Callable[[], torch.nn.Module], positions: torch.Tensor) -> flattening.FlatModule:
    torch.manual_seed(0)
    model = kind().eval().requires_grad_(False)
    return flattening.FlatModule(model, flattening.flatten_inputs(model, (positions,))).eval()


@pytest.mark.parametrize("kind", [ForceField, Recording, Functional, Saliency])
def test_forces_are_captured_for_all_sizes(kind: Callable[[], torch.nn.Module]) -> None:
    torch.manual_seed(1)
    example = torch.randn(2, 5, 3)
    module = flat(kind, example)
    spec = TensorSpec("positions", "float32", ("batch", "atoms", 3))
    sizes = {"batch": Range(1, 4), "atoms": Range(2, 12)}
    with torch.no_grad():
        assert not any(t.requires_grad for t in module(example))  # as in every run before an export
        program = capture.export_program(module, (example,), Contract("forces", (spec,), (), sizes)).module()
        for batch, atoms in ((1, 5), (4, 12), (2, 2)):
            positions = torch.randn(batch, atoms, 3)
            for got, expected in zip(program(positions), module(positions.clone()), strict=True):
                torch.testing.assert_close(got, expected)
            assert got.abs().max() > 0.01
    assert not any(parameter.requires_grad for parameter in module.parameters())


class InHalf(torch.nn.Module):
    """Another module around the flat one, as for another precision."""

    def __init__(self, flat: flattening.FlatModule) -> None:
        super().__init__()
        self.flat = flat

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(one / 2 for one in self.flat(*tensors))


@pytest.mark.parametrize("kind", [ForceField, Saliency])
def test_a_capture_may_be_the_first_call(kind: Callable[[], torch.nn.Module]) -> None:
    example = torch.randn(2, 5, 3)
    module = InHalf(flat(kind, example)).eval()
    contract = Contract("forces", (TensorSpec("positions", "float32", (2, 5, 3)),), (), {})
    with torch.no_grad():
        program = capture.export_program(module, (example,), contract).module()
        for got, expected in zip(program(example), module(example.clone()), strict=True):
            torch.testing.assert_close(got, expected)


def test_a_model_that_calls_backward_runs() -> None:
    positions = torch.randn(2, 5, 3)
    with torch.no_grad():
        got, expected = flat(Backward, positions.clone())(positions.clone()), flat(ForceField, positions)(positions)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other)


class Counting(ForceField):
    """A force field that counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.count += 1
        energy, forces = super().forward(positions)
        return energy + self.count, forces


@pytest.mark.parametrize("recording", [differentiation.Recording.NOTHING, differentiation.Recording.OPERATORS])
def test_a_capture_leaves_the_state_as_it_was(recording: differentiation.Recording) -> None:
    example = torch.randn(2, 5, 3)
    module = flat(Counting, example)
    differentiation.note(module.model, recording)
    contract = Contract("counting", (TensorSpec("positions", "float32", (2, 5, 3)),), (), {})
    with torch.no_grad(), contextlib.suppress(ExportError):  # the count is not known to be state
        capture.export_program(module, (example,), contract)
    assert module.get_buffer("model.count") == 0


def test_gradients_are_refused_and_torch_is_restored() -> None:
    x = torch.ones(2, requires_grad=True)
    with differentiation.refused() as seen:
        assert not seen
        with pytest.raises(RuntimeError, match="forward computes gradients"):
            torch.autograd.grad(x.sum(), x)
        assert seen
    (slope,) = torch.autograd.grad(x.sum(), x)
    assert slope.tolist() == [1, 1]


def test_state_and_inputs_that_change_before_the_gradients(run: Run) -> None:
    manifest, _ = run("gradients:counting", "script", bench=False)
    assert [variant.status for variant in manifest.variants] == ["passed"]
    assert [tensor.spec.name for tensor in manifest.contract.state.tensors] == ["state.mean"]


class Swallowing(ForceField):
    """A force field that catches the refusal."""

    def forward(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.enable_grad():
            try:
                return super().forward(positions.detach())
            except RuntimeError:
                return positions.sum((1, 2)), positions


def test_a_refusal_that_the_model_catches_counts() -> None:
    example = torch.randn(2, 5, 3)
    module = flat(Swallowing, example)
    contract = Contract("forces", (TensorSpec("positions", "float32", (2, 5, 3)),), (), {})
    with torch.no_grad(), _tracing.warned():
        program = capture.export_program(module, (example,), contract).module()
        torch.testing.assert_close(program(example)[1], module(example)[1])
        with pytest.raises(RuntimeError, match="forward computes gradients"):
            _tracing.trace(module, (example,))


def test_other_errors_of_a_model_are_its_own() -> None:
    calls = []

    def fail(_: torch.Tensor) -> None:
        calls.append(1)
        raise RuntimeError("element 0 of tensors is odd")

    class Failing(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> None:
            fail(x)

    with torch.no_grad(), pytest.raises(RuntimeError, match="is odd"):
        flat(Failing, torch.ones(1))(torch.ones(1))
    assert len(calls) == 1
