"""onnxscript's rewriter and torch's translation, without needless work."""

from __future__ import annotations

from collections import Counter
from typing import Any
from unittest import mock

import onnx
import onnxscript.optimizer
import pytest
import torch
from onnxscript.rewriter import _matcher
from torch.onnx._internal.exporter import _fx_passes, _registration
from torch.onnx._internal.fx.passes import type_promotion

from exporter.targets import _onnx_rewriting

# The rewriter looks for two slices that can be one split.
HALVES = """
<ir_version: 10, opset_import: ["" : 20]>
halves (float[2, 4] x) => (float[2, 2] y)
<int64[1] zero = {0}, int64[1] two = {2}, int64[1] four = {4}, int64[1] last = {-1}>
{
    a = Neg(x)
    b = Exp(a)
    c = Neg(b)
    left = Slice(c, zero, two, last)
    right = Slice(c, two, four, last)
    y = Mul(left, right)
}
"""


def optimized() -> bytes:
    """Return the optimized model."""
    model: Any = onnxscript.optimizer.optimize(onnx.parser.parse_model(HALVES))
    made: bytes = model.SerializeToString()
    return made


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the matcher of a rule for several nodes was called, by the type of the node."""
    counted: Counter[str] = Counter()
    usual = _matcher.SimplePatternMatcher.match

    def match(self: Any, model: Any, graph: Any, node: Any, **options: Any) -> Any:
        if not self.pattern.has_single_output_node:
            counted[node.op_type] += 1
        return usual(self, model, graph, node, **options)

    monkeypatch.setattr(_matcher.SimplePatternMatcher, "match", match)
    return counted


@pytest.mark.parametrize(("number", "kept"), [(0.0, 0), (1e-8, 1), (1e-12, 1), (-1e-9, 1)])
def test_only_the_addition_of_zero_is_removed(number: float, kept: int) -> None:
    text = f"""
        <ir_version: 10, opset_import: ["" : 20]>
        sum (float[2] x) => (float[2] y) <float tiny = {{{number}}}> {{ a = Neg(x) b = Add(a, tiny) y = Exp(b) }}
    """
    with _onnx_rewriting.with_exact_zeros():
        model = onnxscript.optimizer.optimize(onnx.parser.parse_model(text))
    assert [node.op_type for node in model.graph.node].count("Add") == kept


def test_only_nodes_that_can_be_the_first_search_the_graph(searches: Counter[str]) -> None:
    usual = optimized()
    assert searches["Neg"] > 0, "onnxscript no longer searches for each node: remove the workaround"
    searches.clear()
    with _onnx_rewriting.without_needless_searches():
        made = optimized()
    assert set(searches) == {"Slice"}
    assert made == usual
    optimized()
    assert searches["Neg"] > 0, "afterwards, onnxscript is as before"


def _promoted(known: bool = True) -> tuple[str, int]:
    """Return the nodes of a model that mixes dtypes, with explicit casts, and the number of operators that were run."""

    class Mixed(torch.nn.Module):
        def forward(self, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
            return (x.sin() + i) / i.sum() * 2

    program = torch.export.export(Mixed(), (torch.randn(2, 3), torch.ones(2, 3, dtype=torch.int64)), strict=False)
    program.graph_module.meta[_onnx_rewriting.VALUES_KNOWN] = known
    ran = mock.Mock(wraps=torch.fx.Interpreter.call_function)
    with mock.patch.object(torch.fx.Interpreter, "call_function", lambda *given: ran(*given)):
        _fx_passes.insert_type_promotion_nodes(program.graph_module)
    nodes = [(str(node.target), str(node.args), str(node.meta.get("val"))) for node in program.graph.nodes]
    return str(nodes), ran.call_count


def test_only_operators_with_other_dtypes_are_run() -> None:
    usual, all_runs = _promoted()
    with _onnx_rewriting.without_needless_runs():
        made, runs = _promoted()
        assert _promoted(known=False) == (usual, all_runs)
    assert "convert_element_type" in made
    assert made == usual
    assert 0 < runs < all_runs
    assert _promoted() == (usual, all_runs), "afterwards, torch is as before"


def test_a_registry_is_made_once_and_callers_do_not_share_their_additions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_onnx_rewriting, "_registries", {})
    usual = _registration.ONNXRegistry.from_torchlib(opset_version=19)
    with (
        _onnx_rewriting.with_one_registry(),
        mock.patch.object(
            _registration.onnxscript_apis, "get_torchlib_ops", wraps=_registration.onnxscript_apis.get_torchlib_ops
        ) as reads,
    ):
        first, second = (_registration.ONNXRegistry().from_torchlib(opset_version=19) for _ in range(2))
        first.register_op(torch.ops.aten.sin.default, lambda x: x)
        third = _registration.ONNXRegistry.from_torchlib(opset_version=19)
    assert reads.call_count == 1
    assert len(first.get_decomps(torch.ops.aten.sin.default)) == 2
    for made in (second, third):
        assert made.opset_version == 19
        assert {name: len(found) for name, found in made.functions.items()} == {
            name: len(found) for name, found in usual.functions.items()
        }


@pytest.mark.parametrize(
    ("owner", "name", "context"),
    [
        (_matcher, "SimplePatternMatcher", _onnx_rewriting.without_needless_searches),
        (type_promotion, "_TypePromotionInterpreter", _onnx_rewriting.without_needless_runs),
        (_registration, "ONNXRegistry", _onnx_rewriting.with_one_registry),
    ],
)
def test_another_version_is_left_alone(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, context: Any) -> None:
    monkeypatch.delattr(owner, name)
    with context():
        assert not hasattr(owner, name)
