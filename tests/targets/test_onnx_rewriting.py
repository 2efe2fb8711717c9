"""The rewriter of onnxscript, without needless searches."""

from __future__ import annotations

from collections import Counter
from typing import Any

import onnx
import onnxscript.optimizer
import pytest
from onnxscript.rewriter import _matcher

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


def test_another_version_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(_matcher, "SimplePatternMatcher")
    with _onnx_rewriting.without_needless_searches():
        pass
