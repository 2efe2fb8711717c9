"""Layers that stay in float32 in a model that computes in a half precision.

Floating-point values are cast where they enter such a layer and where they leave it. Everything inside it, its
functional code included, computes in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from exporter.core import source_lines
from exporter.core.errors import ExportError
from exporter.model import structure
from exporter.model.layer_names import is_kept, own_path, require_known
from exporter.model.tensors import Tensors

Undo = Callable[[], None]
# Modules that have a fused kernel, each with the attribute that turns it off.
FUSED = {
    torch.nn.TransformerEncoderLayer: "activation_relu_or_gelu",
    torch.nn.TransformerEncoder: "use_nested_tensor",
}


@dataclass
class _Model:
    """What the borders of a model share: its half precision, and how many of them the current call is inside."""

    dtype: torch.dtype
    depth: int = 0


@dataclass
class Border:
    """The border of one layer: whether it was crossed, and whether the layer changes its inputs in place.

    Both are observed when the model runs in eager; compilers use what was observed.
    """

    model: _Model
    crossed: bool = False
    writes: bool = False

    def call(self, layer: torch.nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a layer's forward in float32. Nothing is cast if the caller is such a layer itself."""
        if self.model.depth:
            return forward(*args, **kwargs)
        dtype = self.model.dtype
        _widen_state(layer, dtype)
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []

        def enter(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.dtype != dtype:
                return tensor
            copies.append((tensor, tensor.float()))
            return copies[-1][1]

        given = [_changed(one, enter) for one in args]
        named = {name: _changed(one, enter) for name, one in kwargs.items()}
        watched = not torch.compiler.is_compiling()
        before = [copy._version for _, copy in copies] if watched else []
        self.model.depth += 1
        try:
            result = forward(*given, **named)
        finally:
            self.model.depth -= 1
        if watched:
            self.crossed = True
            self.writes = self.writes or before != [copy._version for _, copy in copies]
        if self.writes:  # the caller may rely on it
            for original, copy in copies:
                original.copy_(copy)
        return _changed(result, lambda t: t.to(dtype) if t.dtype == torch.float32 else t)


def _changed(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a structure with its tensors changed. Objects that are not containers, such as caches, stay themselves."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if value is None or structure.is_cache(value):
        return value
    items = structure.contained(value)
    if not items:
        return value
    found = [_changed(item, change) for _, item in items]
    same = all(new is old for new, (_, old) in zip(found, items, strict=True))
    return value if same else structure.with_items(value, found)


def _widen_state(layer: torch.nn.Module, dtype: torch.dtype) -> None:
    """Replace state that a caller has put into the layer in the half precision."""
    for inner in layer.modules():
        for held in (inner._buffers, vars(inner)):
            for name, value in held.items():
                if isinstance(value, torch.Tensor) and value.dtype == dtype:
                    held[name] = value.float()


def keep(flat: torch.nn.Module, kept: Sequence[str], dtype: torch.dtype) -> tuple[list[torch.Tensor], list[Undo]]:
    """Let the named layers compute in float32 in a model that is going to be cast to `dtype`.

    Returns their parameters and buffers, which must not be cast, and what undoes the changes, in order. A parameter
    that another layer has too is separated from it.

    Raises ExportError for a name that the model lacks, or a part of a TorchScript program.
    """
    require_known(flat, kept)
    inside: dict[int, torch.nn.Module] = {}
    outside: dict[int, torch.nn.Module] = {}
    tops: dict[int, torch.nn.Module] = {}
    for path, module in flat.named_modules(remove_duplicate=False):
        own = own_path(path)
        (inside if is_kept(own, kept) else outside)[id(module)] = module
        if own in kept:
            tops |= {id(one): one for one in _called(module)}
    shared = {key: module for key, module in inside.items() if key in outside}  # a layer that is used elsewhere too
    model, undo = _Model(dtype), list[Undo]()
    try:
        for module in (tops | shared).values():
            undo.append(_surround(module, Border(model)))
    except ExportError:
        for step in reversed(undo):
            step()
        raise
    undo += [step for module in outside.values() for step in _call_each_layer(module, tops)]
    theirs = {id(t) for key, module in outside.items() if key not in inside for t in _own_tensors(module)}
    copies: dict[int, torch.Tensor] = {}
    for module in inside.values():
        undo += _separate(module, theirs, copies)
    return [tensor for module in inside.values() for tensor in _own_tensors(module)], undo


def _called(layer: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the layer, or the layers in a container that has no forward of its own."""
    if isinstance(layer, (torch.nn.ModuleList, torch.nn.ModuleDict)):
        return [one for inner in layer.children() for one in _called(inner)]
    return [layer]


def _own_tensors(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    yield from (t for t in (*module._parameters.values(), *module._buffers.values()) if t is not None)


def _surround(layer: Any, border: Border) -> Undo:
    """Cast at the border of a layer, by a subclass of its class, so that attributes and types stay as they were."""
    usual = type(layer)
    if isinstance(layer, torch.jit.ScriptModule):
        raise ExportError("a layer to keep in float is a part of a TorchScript program", "name a module around it")
    own: Callable[..., Any] | None = vars(layer).get("forward")  # some libraries replace it in the instance

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return border.call(self, own or usual.forward.__get__(self), args, kwargs)

    names = {
        "forward": forward,
        "__module__": usual.__module__,
        "__qualname__": usual.__qualname__,
        "_exporter_border": border,
    }
    layer.__class__ = type(usual.__name__, (usual,), names)
    if own is not None:
        del layer.forward

    def undo() -> None:
        layer.__class__ = usual
        if own is not None:
            layer.forward = own

    return undo


def _call_each_layer(module: Any, tops: Mapping[int, torch.nn.Module]) -> list[Undo]:
    """Let torch's encoders call the layers inside them: their fused kernel takes the weights in one precision."""
    name = next((name for kind, name in FUSED.items() if isinstance(module, kind)), "")
    if not name or not any(id(inner) in tops for inner in module.modules()):
        return []
    usual = getattr(module, name)
    setattr(module, name, False)
    return [lambda: setattr(module, name, usual)]


def _separate(module: Any, theirs: set[int], copies: dict[int, torch.Tensor]) -> list[Undo]:
    """Give a kept layer tensors of its own in place of those that it has in common with others."""
    undo: list[Undo] = []
    for held in (module._parameters, module._buffers):
        for name, tensor in held.items():
            if tensor is None or id(tensor) not in theirs:
                continue
            if id(tensor) not in copies:
                is_weight = isinstance(tensor, torch.nn.Parameter)
                copies[id(tensor)] = torch.nn.Parameter(tensor.data, requires_grad=False) if is_weight else tensor.data
            undo.append(lambda held=held, name=name, tensor=tensor: held.__setitem__(name, tensor))  # type: ignore[misc]
            held[name] = copies[id(tensor)]
    return undo


def require_crossed(flat: torch.nn.Module, kept: Sequence[str], inputs: Tensors) -> None:
    """Run the model, and raise ExportError if it fails, or if a layer is never called, so that it would not be kept."""
    failure: Exception | None = None
    try:
        with torch.no_grad():
            flat(*(tensor.clone() for tensor in inputs))
    except Exception as error:  # a model can raise anything
        failure = error
    layers: dict[str, Any] = {own_path(path): module for path, module in flat.named_modules(remove_duplicate=False)}
    for name in kept:
        borders: list[Border] = [type(layer)._exporter_border for layer in _called(layers[name])]  # type: ignore[attr-defined]
        inner = any(is_kept(name, (other,)) for other in kept if other != name)
        if not inner and not any(border.crossed for border in borders):
            around = name.rpartition(".")[0]
            raise ExportError(
                f"the layer to keep in float, {name}, is never called: the module around it uses its weights",
                f"name {around}" if around else "name a layer that is called",
            ) from failure
    if failure is not None:
        raise ExportError(
            f"the model does not run with {', '.join(kept)} in float32: {source_lines.summary(failure)}",
            "name a module around these layers",
        ) from failure
