"""Translation to ONNX without work that cannot change the graph, and without taking 1e-8 for 0.

onnxscript's rewriter tries every rule at every node, and compares the operators only after it has set up the search.
For a rule of two nodes, `SlicesSplit`, it first lists all nodes of the graph by type, each time. torch.onnx.export runs
every operator with fake tensors to find their dtypes, which the exported program already has, and reads the source of
all its translations each time. The rewriter counts 1e-8 as 0, so it removes the addition in `(x + 1e-8).log()`.
It names constants after the value that they are used with, so that those of one rule replace those of another.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import types
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

VALUES_KNOWN = "exporter_values_known"  # in the meta of a graph module whose nodes' `val` are right at every size
_registries: dict[int, Any] = {}  # by opset


@contextlib.contextmanager
def replaced(find: Callable[[], tuple[Any, str, Any]]) -> Iterator[None]:
    """Replace an attribute of a library; `find` returns its owner, its name and the replacement.

    Another version of the library may lack what `find` looks up, and is then left as it is.
    """
    try:
        owner, name, other = find()
    except (ImportError, AttributeError):
        patch: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    else:
        patch = mock.patch.object(owner, name, other)
    with patch:
        yield


def without_needless_searches() -> contextlib.AbstractContextManager[None]:
    """Let onnxscript's rewriter try a rule only at nodes with the operator of its first node."""
    return replaced(_search)


def without_needless_runs() -> contextlib.AbstractContextManager[None]:
    """Let torch.onnx.export run only the operators whose dtypes it changes, in a graph module marked VALUES_KNOWN.

    torch's decomposition of a whole program can leave values with the example's sizes, which running them mends.
    """
    return replaced(_run)


def with_one_registry() -> contextlib.AbstractContextManager[None]:
    """Let torch make its registry of translations only once for each opset in this process."""
    return replaced(_registry)


def with_exact_zeros() -> contextlib.AbstractContextManager[None]:
    """Let onnxscript's rewriter find 0 in a rule only where the graph has 0: docs/upstream.md."""
    return replaced(_closeness)


def with_unique_names() -> contextlib.AbstractContextManager[None]:
    """Let onnxscript's rewriter name each constant differently: two Clips of one value got the same limits."""
    return replaced(_initializers)


def _initializers() -> tuple[Any, str, Any]:
    from onnxscript._internal import tape_builder

    builder: Any = tape_builder.BuilderBase
    usual, numbers = builder.initializer, itertools.count()

    def initializer(self: Any, tensor: Any, name: str | None = None) -> Any:
        return usual(self, tensor, f"{name or tensor.name}_{next(numbers)}")

    return builder, "initializer", initializer


def _closeness() -> tuple[Any, str, Any]:
    from onnxscript.rewriter import _matcher

    def isclose(one: float, other: float, *, rel_tol: float, abs_tol: float) -> bool:
        return math.isclose(one, other, rel_tol=rel_tol)

    return _matcher, "math", types.SimpleNamespace(**{**vars(math), "isclose": isclose})


def _search() -> tuple[Any, str, Any]:
    from onnxscript.rewriter import _basics, _matcher

    matcher: Any = _matcher.SimplePatternMatcher
    usual, none = matcher.match, _basics.MatchResult

    def match(self: Any, model: Any, graph: Any, node: Any, **options: Any) -> Any:
        first, *others = self.pattern.output_nodes
        operator = first.op_identifier()
        if operator is not None and operator[:2] != (node.domain, node.op_type):
            return none().fail("the operator is another one")
        if others and not first.matches(node, none()):
            return none().fail("the node is not the first one of the rule")
        return usual(self, model, graph, node, **options)

    return matcher, "match", match


def _run() -> tuple[Any, str, Any]:
    from torch.onnx._internal.fx.passes import type_promotion

    interpreter: Any = type_promotion._TypePromotionInterpreter
    usual = interpreter.run_node
    rule_of, promote = type_promotion.get_type_promotion_rule, interpreter._maybe_promote_node

    def run_node(self: Any, node: Any) -> Any:
        known = node.op == "call_function" and node.meta.get("val") is not None
        if not known or not self.module.meta.get(VALUES_KNOWN):
            return usual(self, node)
        with self._set_current_node(node):
            if rule := rule_of(node, self.type_promotion_table):
                promote(self, node, rule)
        return node.meta["val"]  # an operator that was changed has been run by now

    return interpreter, "run_node", run_node


def _registry() -> tuple[Any, str, Any]:
    from torch.onnx._internal.exporter import _constants, _registration

    registry: Any = _registration.ONNXRegistry
    usual, default = registry.from_torchlib, _constants.TORCHLIB_OPSET

    def from_torchlib(opset_version: int = default) -> Any:
        if opset_version not in _registries:
            _registries[opset_version] = usual(opset_version)
        made = copy.copy(_registries[opset_version])
        made.functions = {name: list(found) for name, found in made.functions.items()}  # callers add their own
        return made

    return registry, "from_torchlib", staticmethod(from_torchlib)
