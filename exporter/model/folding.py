"""Rewrites of exported programs that make them faster: batch norms folded into convolutions, linear layers merged."""

from __future__ import annotations

import copy
import operator
import sys
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import ExportGraphSignature, InputKind, InputSpec
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.nn.utils.fusion import fuse_conv_bn_weights

CONVOLUTIONS = tuple(
    overload
    for name in ("conv1d", "conv2d", "conv3d")
    for overload in (getattr(torch.ops.aten, name).default, getattr(torch.ops.aten, name).padding)
)
# Positions of the operands of aten.batch_norm and aten.conv*d.
NORMALIZED, SCALE, SHIFT, MEAN, VARIANCE, TRAINING, EPSILON = 0, 1, 2, 3, 4, 5, 7
WEIGHT, BIAS = 1, 2


def fold_batch_norms(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Return a program without the batch norms that can be folded; the given one if there are none.

    A convolution `w * x + b` that only a batch norm with fixed statistics uses gets the weight `w * s` and the bias
    `(b - mean) * s + shift`, with `s = scale / sqrt(variance + epsilon)`, computed in float64. The weights that no
    node uses any more are removed. The given program is not changed.
    """
    found = [node for node in program.graph.nodes if _is_foldable(node, program)]
    if not found:
        return program
    module, copies, targets = copied(program)
    weights = dict(program.state_dict)
    for node in found:
        _fold(copies[node], targets, weights)
    return rebuilt(program, module, weights)


def merge_linears(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Return a program in which linear layers with the same input are one, as queries, keys and values often are.

    Returns the given program, unchanged, if there are none, or if a later node does not accept the strides of a part
    of the merged output; the job's log then says so. torch.jit.freeze does the same for GPUs, on which fewer and larger
    kernels are faster.
    """
    groups: dict[tuple[Any, ...], list[fx.Node]] = {}
    for node in program.graph.nodes:
        if _is_mergeable(node, program):
            dtype = program.state_dict[_target(node.args[WEIGHT], program)].dtype
            groups.setdefault((node.args[0], dtype, len(node.args)), []).append(node)
    found = [nodes for nodes in groups.values() if len(nodes) > 1]
    if not found:
        return program
    module, copies, targets = copied(program)
    weights = dict(program.state_dict)
    for nodes in found:
        _merge([copies[node] for node in nodes], targets, weights)
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    fake = torch._guards.detect_fake_mode([node.meta.get("val") for node in placeholders])
    for placeholder in placeholders:
        if (name := targets.get(placeholder)) in weights and fake is not None:
            placeholder.meta["val"] = fake.from_tensor(weights[str(name)], static_shapes=True)
    try:
        _Propagation(module, fake).propagate_dont_convert_inputs(*(one.meta["val"] for one in placeholders))
    except Exception as error:  # whatever an operator raises for its inputs
        print(f"linear layers with the same input are not merged: {error}", file=sys.stderr)
        return program
    return rebuilt(program, module, weights)


class _Propagation(FakeTensorProp):
    """Propagates the strides of merged layers, but keeps what torch.export found for attention.

    On a GPU, attention pads its mask, which torch 2.11 cannot do for a dynamic size outside torch.export. The strides
    of its output are the same whether or not its inputs are parts of a larger tensor.
    """

    def run_node(self, n: fx.Node) -> Any:
        attention = n.target is torch.ops.aten.scaled_dot_product_attention.default
        return n.meta["val"] if attention else super().run_node(n)


def copied(
    program: torch.export.ExportedProgram,
) -> tuple[fx.GraphModule, dict[fx.Node, fx.Node], dict[fx.Node, str | None]]:
    """Return a copy of the graph, the copy of each node, and the weights' names by placeholder of the copy."""
    module = copy.deepcopy(program.graph_module)
    copies = dict(zip(program.graph.nodes, module.graph.nodes, strict=True))  # names may differ
    targets = {copies[node]: spec.target for node, spec in inputs(program.graph, program.graph_signature)}
    return module, copies, targets


def inputs(graph: fx.Graph, signature: ExportGraphSignature) -> list[tuple[fx.Node, InputSpec]]:
    """Return the placeholders of a program's graph, each with what it stands for."""
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    return list(zip(placeholders, signature.input_specs, strict=True))


def _is_foldable(node: fx.Node, program: torch.export.ExportedProgram) -> bool:
    if node.target is not torch.ops.aten.batch_norm.default or node.args[TRAINING]:
        return False
    convolution = node.args[NORMALIZED]
    if not isinstance(convolution, fx.Node) or convolution.target not in CONVOLUTIONS or len(convolution.users) != 1:
        return False
    used = [convolution.args[WEIGHT], *node.args[SCALE : VARIANCE + 1]]
    has_bias = len(convolution.args) > BIAS and convolution.args[BIAS] is not None
    if has_bias:
        used.append(convolution.args[BIAS])
    elif node.args[SHIFT] is None:
        return False  # the bias has no place
    return all(operand is None or _is_own_weight(operand, program) for operand in used)


def _is_mergeable(node: fx.Node, program: torch.export.ExportedProgram) -> bool:
    return (
        node.target is torch.ops.aten.linear.default
        and all(isinstance(operand, fx.Node) and _is_own_weight(operand, program) for operand in node.args[WEIGHT:])
        and all(user.op != "output" for user in node.users)  # outputs stay contiguous
    )


def _target(operand: Any, program: torch.export.ExportedProgram) -> str:
    return next(str(s.target) for s in program.graph_signature.input_specs if s.arg.name == operand.name)


def _merge(nodes: list[fx.Node], targets: dict[fx.Node, str | None], weights: dict[str, Any]) -> None:
    """Make one linear layer of several, in place of the first, with its weight and bias."""
    first, graph = nodes[0], nodes[0].graph
    sizes = [len(weights[str(targets[node.args[WEIGHT]])]) for node in nodes]  # type: ignore[index]
    for position, operand in enumerate(first.args[WEIGHT:], WEIGHT):
        parts = [weights[str(targets[node.args[position]])] for node in nodes]  # type: ignore[index]
        weights[str(targets[operand])] = torch.nn.Parameter(torch.cat(parts), requires_grad=False)  # type: ignore[index]
    with graph.inserting_after(first):
        split = graph.call_function(torch.ops.aten.split_with_sizes.default, (first, sizes, -1))
    for place, node in reversed(list(enumerate(nodes))):
        with graph.inserting_after(split):
            part = graph.call_function(operator.getitem, (split, place))
        part.meta = {**node.meta}
        node.replace_all_uses_with(part, delete_user_cb=lambda user: user is not split)
        if node is not first:
            graph.erase_node(node)
    split.meta = {name: value for name, value in first.meta.items() if name != "val"}


def _is_own_weight(operand: Any, program: torch.export.ExportedProgram) -> bool:
    """Return whether an operand is a weight that one node reads and none writes."""
    signature = program.graph_signature
    kinds = {
        spec.arg.name: spec for spec in signature.input_specs if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER)
    }
    spec = kinds.get(operand.name)
    return (
        spec is not None
        and len(operand.users) == 1
        and spec.target in program.state_dict
        and spec.target not in signature.buffers_to_mutate.values()
        and sum(program.state_dict[spec.target] is tensor for tensor in program.state_dict.values()) == 1
    )


def _fold(norm: fx.Node, targets: dict[fx.Node, str | None], weights: dict[str, Any]) -> None:
    convolution = norm.args[NORMALIZED]
    assert isinstance(convolution, fx.Node)

    def value(operand: Any) -> torch.Tensor | None:
        return None if operand is None else weights[str(targets[operand])].detach().double()

    args = [*convolution.args, *[None] * (BIAS + 1 - len(convolution.args))]
    mean, variance = value(norm.args[MEAN]), value(norm.args[VARIANCE])
    weight, scale, shift = value(args[WEIGHT]), value(norm.args[SCALE]), value(norm.args[SHIFT])
    assert weight is not None
    assert mean is not None
    assert variance is not None
    epsilon: Any = norm.args[EPSILON]
    fused = fuse_conv_bn_weights(weight, value(args[BIAS]), mean, variance, epsilon, scale, shift)
    if args[BIAS] is None:
        args[BIAS] = norm.args[SHIFT]  # its place, with other values
    for operand, tensor in zip((args[WEIGHT], args[BIAS]), fused, strict=True):
        assert isinstance(operand, fx.Node)
        name = str(targets[operand])
        dtype = weights[name].dtype
        weights[name] = torch.nn.Parameter(tensor.to(dtype).contiguous(), requires_grad=False)
    convolution.args = tuple(args)
    norm.replace_all_uses_with(convolution)
    norm.graph.erase_node(norm)


def rebuilt(
    program: torch.export.ExportedProgram,
    module: fx.GraphModule,
    weights: dict[str, Any],
    signature: ExportGraphSignature | None = None,
) -> torch.export.ExportedProgram:
    """Return the program with another graph, without the weights that it no longer uses."""
    signature = signature or copy.deepcopy(program.graph_signature)
    for node, spec in inputs(module.graph, signature):
        spec.arg.name = node.name
        if not node.users and spec.kind in (InputKind.PARAMETER, InputKind.BUFFER) and spec.target in weights:
            module.graph.erase_node(node)
            signature.input_specs.remove(spec)
            del weights[spec.target]
    results: Any = module.graph.output_node().args[0]
    for result, output in zip(results, signature.output_specs, strict=True):
        if isinstance(result, fx.Node):
            output.arg.name = result.name
    module.recompile()
    made = torch.export.ExportedProgram(
        root=module,
        graph=module.graph,
        graph_signature=signature,
        state_dict=weights,
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants=program.constants,
        verifiers=program.verifiers,
    )
    if hasattr(program, "_guards_code"):
        made._guards_code = program._guards_code
    return made
