"""Decomposition of operators one by one, compared with torch's of the whole program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch.export import Dim, ExportedProgram
from torch.nn import functional as F
from torch.onnx._internal.exporter import _decomp, _fx_passes, _registration

from exporter.targets import _onnx_decomposing

REGISTRY = _registration.ONNXRegistry.from_torchlib()
TABLE = _decomp.create_onnx_friendly_decomposition_table(set(_decomp.get_onnx_implemented_overloads(REGISTRY)))
ALIKE = {  # have the same translation
    "aten.reshape.default": "aten.view.default",
    "aten.native_batch_norm.default": "aten._native_batch_norm_legit_no_training.default",
}


class Model(nn.Module):
    def __init__(self, compute: Callable[[nn.Module, torch.Tensor], Any]) -> None:
        super().__init__()
        self.compute = compute
        self.convolution, self.norm, self.layer = nn.Conv1d(4, 4, 3, padding=1), nn.BatchNorm1d(4), nn.Linear(8, 8)
        self.register_buffer("count", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> Any:
        return self.compute(self, x)


def program(compute: Callable[[Any, torch.Tensor], Any]) -> ExportedProgram:
    torch.manual_seed(0)
    dynamic = ({0: Dim("batch", min=2, max=9)},)
    with torch.no_grad():
        return torch.export.export(Model(compute).eval(), (torch.randn(3, 4, 8),), dynamic_shapes=dynamic, strict=False)


def operators(made: ExportedProgram) -> list[str]:
    return sorted(str(node.target) for node in made.graph.nodes if node.op == "call_function")


@pytest.mark.parametrize(
    "compute",
    [
        lambda m, x: m.norm(m.convolution(x)).reshape(x.shape[0], -1, 2, 8).diff(),
        lambda m, x: F.relu(m.layer(x), inplace=True).to(torch.float64).to(torch.float64),
        lambda m, x: (x > 0).__and__(x < 1).masked_fill_(x > 2, True) & (m.layer(x) > 0),
        lambda m, x: F.adaptive_avg_pool1d(x, 2).flatten(1).chunk(2, -1),
        lambda m, x: torch.stack([*x.unbind(1)]).new_zeros(x.shape[0]),
    ],
)
def test_the_result_is_that_of_decomposing_the_whole_program(compute: Callable[[Any, torch.Tensor], Any]) -> None:
    given = program(compute)
    before = str(given.graph)
    made, expected = _onnx_decomposing.decomposed(given, TABLE), given.run_decompositions(dict(TABLE))
    assert str(given.graph) == before
    assert sorted(ALIKE.get(one, one) for one in operators(made)) == operators(expected)
    x = torch.randn(5, 4, 8)
    torch.testing.assert_close(made.module()(x), given.module()(x), rtol=0, atol=0)


def test_a_pool_to_one_pixel_is_a_mean() -> None:
    given = program(lambda m, x: F.adaptive_avg_pool2d(x.reshape(-1, 4, 2, 4).to(memory_format=torch.channels_last), 1))
    made = _onnx_decomposing.decomposed(given, TABLE)
    assert "aten.mean.dim" in operators(made)
    x = torch.randn(5, 4, 8)
    torch.testing.assert_close(made.module()(x), given.module()(x))


def test_the_number_of_elements_is_a_product_of_sizes() -> None:
    given = program(lambda m, x: torch.meshgrid(x[:, 0, 0], x[:, 0, 1], indexing="ij"))
    with mock.patch.object(_onnx_decomposing, "_numel", wraps=_onnx_decomposing._numel) as counts:
        made = _onnx_decomposing.decomposed(given, TABLE)
    assert counts.called
    assert "aten.sym_numel.default" not in operators(made)
    x = torch.randn(5, 4, 8)
    assert all(map(torch.equal, made.module()(x), given.module()(x)))


def _adds_to_a_part(model: Any, x: torch.Tensor) -> torch.Tensor:
    y = model.layer(x)
    y[:, 0] += 1
    return y


def _adds_through_dropout(model: Any, x: torch.Tensor) -> torch.Tensor:
    y = model.layer(x)
    part = F.dropout(y[:, 1:], training=False)  # is the view itself
    part += 1
    return y.sum(1) + part.sum(1)


def _changes_the_input(model: Any, x: torch.Tensor) -> torch.Tensor:
    F.relu(F.dropout(x[:, 1:], training=False), inplace=True)
    return x * 2


def _adds_through_another_rank(model: Any, x: torch.Tensor) -> torch.Tensor:
    y = model.layer(x).sum((1, 2))
    torch.atleast_2d(y).add_(1)
    return y


def _adds_to_the_same_type(model: Any, x: torch.Tensor) -> torch.Tensor:
    y = model.layer(x)
    y[:, 1:].type_as(x).add_(1)
    return y


def _keeps_the_dtype(model: Any, x: torch.Tensor) -> torch.Tensor:
    return x.half().mul_(x)


def _counts(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.count += 1
    return x + model.count


def _learns(model: Any, x: torch.Tensor) -> torch.Tensor:
    norm = model.norm
    return F.batch_norm(x, norm.running_mean, norm.running_var, training=True)


def _branches(model: Any, x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))
    return result


@pytest.mark.parametrize(
    "compute",
    [
        _adds_to_a_part,
        _adds_through_dropout,
        _changes_the_input,
        _adds_through_another_rank,
        _adds_to_the_same_type,
        _keeps_the_dtype,
        _counts,
        _learns,
        _branches,
        lambda m, x: x.nonzero(),
    ],
)
def test_other_programs_are_decomposed_as_a_whole(compute: Callable[[Any, torch.Tensor], Any]) -> None:
    given = program(compute)
    with pytest.raises(_onnx_decomposing.NeedsWhole):
        _onnx_decomposing.decomposed(given, TABLE)
    with _onnx_decomposing.one_by_one():
        made = _fx_passes.decompose_with_registry(given, REGISTRY)
    assert operators(made) == operators(given.run_decompositions(dict(TABLE)))


def test_no_condition_on_sizes_is_added_to_the_program() -> None:
    # The decomposition of torch.gru_cell fixes the batch to the example's.
    cell = nn.GRUCell(8, 6).eval()
    given = program(lambda m, x: cell(x[:, 0], x.new_zeros(x.shape[0], 6)))
    values = str([node.meta.get("val") for node in given.graph.nodes])
    with pytest.raises(Exception, match="guard"):
        _onnx_decomposing.decomposed(given, TABLE)
    assert str([node.meta.get("val") for node in given.graph.nodes]) == values


def test_the_whole_program_is_not_traced_if_one_operator_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_fx_passes, "decompose_with_registry", mock.Mock(side_effect=AssertionError))
    with _onnx_decomposing.one_by_one():
        made = _fx_passes.decompose_with_registry(program(lambda m, x: F.relu_(m.norm(m.convolution(x)))), REGISTRY)
    assert "aten.relu.default" in operators(made)


def test_the_whole_program_is_traced_if_an_operator_has_no_translation() -> None:
    given = program(lambda m, x: F.relu_(x.sin()))
    registry = mock.Mock(functions=REGISTRY.functions, is_registered=lambda op: op != torch.ops.aten.relu.default)
    with (
        mock.patch.object(_fx_passes, "decompose_with_registry", return_value=given) as whole,
        _onnx_decomposing.one_by_one(),
    ):
        assert _fx_passes.decompose_with_registry(given, registry) is given
    whole.assert_called_once_with(given, registry)


def test_torch_is_restored() -> None:
    usual = _fx_passes.decompose_with_registry
    with _onnx_decomposing.one_by_one():
        assert _fx_passes.decompose_with_registry is not usual
    assert _fx_passes.decompose_with_registry is usual
