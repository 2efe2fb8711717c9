"""Higher-order operators of torch.export, written out as the `if`, `while` and `for` that they stand for.

Regions that only switch a mode of torch are replaced by their content: an artifact needs no gradients, and
exporter.model.torchscript.bridge writes out the casts of autocast beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from torch import fx

if TYPE_CHECKING:
    from exporter.model.torchscript.lowering import Lowering, Value


def _region(skip: int) -> Callable[[Lowering, fx.Node, fx.GraphModule], Value]:
    """Return a writer that inlines a subgraph, which is the argument after `skip` others."""

    def write(to: Lowering, node: fx.Node, owner: fx.GraphModule) -> Value:
        return tuple(to.inline(_subgraph(owner, node.args[skip]), to.values(node.args[skip + 1 :])))

    return write


def _autocast(to: Lowering, node: fx.Node, owner: fx.GraphModule) -> Value:
    device, _, enabled = node.args[:3]
    if enabled and (to.follows is None or device == to.follows.type):
        return to.refused("higher_order.wrap_with_autocast", node)
    return _region(4)(to, node, owner)


def _cond(to: Lowering, node: fx.Node, owner: fx.GraphModule) -> Value:
    predicate, true, false, operands = node.args
    truth = f"bool({to.value(predicate)})" if isinstance(predicate, fx.Node) else str(bool(predicate))
    given, names = to.values(operands), list[str]()
    for head, branch in ((f"if {truth}:", true), ("else:", false)):
        with to.block(head):
            results = to.inline(_subgraph(owner, branch), given)
            names = names or _names(to, node, results)
            _assign(to, names, results)
    return tuple(names)


def _while(to: Lowering, node: fx.Node, owner: fx.GraphModule) -> Value:
    cond, body, initial, additional = node.args[:4]
    carried, others = _carried(to, node, initial), to.values(additional)
    going = to.name(f"{node.name}_going")

    def test() -> None:
        (answer,) = to.inline(_subgraph(owner, cond), [*carried, *others])
        to.say(f"{going} = bool({answer})")

    test()
    with to.block(f"while {going}:"):
        _assign(to, carried, to.inline(_subgraph(owner, body), [*carried, *others]))
        test()
    return tuple(carried)


def _map(to: Lowering, node: fx.Node, owner: fx.GraphModule) -> Value:
    body, sliced, others = node.args
    return _for(to, node, _subgraph(owner, body), [], to.values(sliced), to.values(others))


def _scan(to: Lowering, node: fx.Node, owner: fx.GraphModule) -> Value:
    body, initial, sliced, others = node.args
    carried = _carried(to, node, initial)
    return _for(to, node, _subgraph(owner, body), carried, to.values(sliced), to.values(others))


def _for(
    to: Lowering, node: fx.Node, body: fx.GraphModule, carried: list[str], along: list[Value], others: list[Value]
) -> Value:
    """Loop over the first dimension of the tensors in `along`; return carried values and the other results stacked."""
    (outputs,) = body.graph.output_node().args
    lists = _names(to, node, cast(Sequence[Any], outputs)[len(carried) :])
    for name in lists:
        to.say(f"{name} = torch.jit.annotate(List[Tensor], [])")
    index, slices, stacked = to.name(f"{node.name}_index"), _names(to, node, along), _names(to, node, lists)
    with to.block(f"for {index} in range(torch.ops.aten.size({along[0]}, 0)):"):
        _assign(to, slices, [f"torch.ops.aten.select({tensor}, 0, {index})" for tensor in along])
        results = to.inline(body, [*carried, *slices, *others])
        for name, result in zip(lists, results[len(carried) :], strict=True):
            to.say(f"{name}.append({result})")
        _assign(to, carried, results[: len(carried)])
    _assign(to, stacked, [f"torch.ops.aten.stack({name})" for name in lists])
    return (*carried, *stacked)


def _carried(to: Lowering, node: fx.Node, initial: Any) -> list[str]:
    """Declare the variables that a loop changes, with their initial values."""
    names = _names(to, node, initial)
    _assign(to, names, to.values(initial))
    return names


def _names(to: Lowering, node: fx.Node, for_each: Any) -> list[str]:
    return [to.name(f"{node.name}_{i}") for i in range(len(for_each))]


def _assign(to: Lowering, names: Sequence[str], values: Sequence[Value]) -> None:
    """Assign all at once, because a value may be the old value of another name."""
    if names:
        to.say(f"{', '.join(names)} = {', '.join(values)}")


def _subgraph(owner: fx.GraphModule, argument: Any) -> fx.GraphModule:
    return cast(fx.GraphModule, owner.get_submodule(str(argument.target)))


REGIONS: dict[str, Callable[[Lowering, fx.Node, fx.GraphModule], Value]] = {
    "cond": _cond,
    "map_impl": _map,
    "scan": _scan,
    "tag_activation_checkpoint": _region(0),
    "while_loop": _while,
    "wrap": _region(0),
    "wrap_activation_checkpoint": _region(0),
    "wrap_with_autocast": _autocast,
    "wrap_with_set_grad_enabled": _region(1),
}
