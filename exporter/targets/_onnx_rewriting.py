"""Translation to ONNX without a search of the whole graph at every node.

onnxscript's rewriter has a rule for two nodes, `SlicesSplit`. To apply it, `SimplePatternMatcher.match` lists all nodes
of the graph by type once for every node, before it looks whether that node can be the first of the two. With BERT's
1300 nodes at 36 layers this takes more than half of the optimizer's time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock


@contextlib.contextmanager
def without_needless_searches() -> Iterator[None]:
    """Let onnxscript's rewriter look for further nodes only if a node matches the first one of a rule."""
    try:
        from onnxscript.rewriter import _basics, _matcher

        matcher: Any = _matcher.SimplePatternMatcher
        usual, none = matcher.match, _basics.MatchResult
    except (ImportError, AttributeError):  # another version of onnxscript
        yield
        return

    def match(self: Any, model: Any, graph: Any, node: Any, **options: Any) -> Any:
        first, *others = self.pattern.output_nodes
        if others and not first.matches(node, none()):
            return none().fail("the node is not the first one of the rule")
        return usual(self, model, graph, node, **options)

    with mock.patch.object(matcher, "match", match):
        yield
