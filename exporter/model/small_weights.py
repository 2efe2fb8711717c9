"""Weights of linear layers and embeddings stored in fewer bytes; everything is computed in float32.

`fp16w` rounds each weight to float16. `int8w` rounds it to a multiple of a float32 scale, from -127 to 127 times: each
output channel of a linear layer, and each row of an embedding, has its scale. A weight that layers share stays shared.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch.nn import functional

from exporter.core.errors import ExportError
from exporter.model.layer_names import is_kept, own_path, require_known

LEAST = 16384  # elements, 64 KiB in float32; smaller weights stay as they are
HIGHEST = 127  # of int8; symmetric, so -128 is not used
DTYPES = {"fp16w": "float16", "int8w": "int8"}

Stored = tuple[torch.Tensor, torch.Tensor | None]  # the weight in fewer bytes, and the scale of each row, if any


def store(weight: torch.Tensor, precision: str) -> Stored:
    """Return a weight of two dimensions in fewer bytes, with the scale of each row for int8."""
    weight = weight.detach()
    if precision == "fp16w":
        return weight.half(), None
    largest = weight.abs().amax(dim=1)
    scale = torch.where(largest > 0, largest / HIGHEST, 1.0)
    return torch.round(weight / scale[:, None]).clamp(-HIGHEST, HIGHEST).to(torch.int8), scale


class _Stored(torch.nn.Module):
    """The weight of a layer in fewer bytes. `weight` is what it stands for, for code that uses it outside the layer."""

    __jit_unused_properties__: ClassVar[list[str]] = ["weight"]
    small: torch.Tensor
    scale: torch.Tensor | None

    @property
    def weight(self) -> torch.Tensor:
        """Return the weight in the dtype of the computation: float32, or float64 in a model that was widened."""
        if self.scale is not None:
            return self.small.to(self.scale.dtype) * self.scale[:, None]
        return self.small.to(torch.promote_types(self.small.dtype, torch.float32))


class StoredLinear(_Stored, torch.nn.Linear):
    """A linear layer with its weight in fewer bytes."""

    product: Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
    packed_product: Callable[[torch.Tensor], torch.Tensor]
    weight = _Stored.weight

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the product in the dtype of the input. The scale is applied to the result, which has fewer elements.

        `product` and the module `packed_product`, which targets may set, multiply rows by the stored weight.
        """
        rows = input.reshape(-1, self.in_features)
        if "product" in vars(self):
            result = self.product(rows, self.small, self.scale).reshape(*input.shape[:-1], self.out_features)
        elif "packed_product" in self._modules:
            result = self.packed_product(rows).reshape(*input.shape[:-1], self.out_features)
        elif self.scale is None:
            return functional.linear(input, self.small.to(input.dtype), self.bias)
        else:
            result = functional.linear(input, self.small.to(input.dtype)) * self.scale
        return result if self.bias is None else result + self.bias


class StoredEmbedding(_Stored, torch.nn.Embedding):
    """An embedding with its weight in fewer bytes: only the rows that are looked up are unpacked."""

    weight = _Stored.weight

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the rows for these indices."""
        rows = functional.embedding(input, self.small)
        if self.scale is None:
            return rows.to(torch.promote_types(rows.dtype, torch.float32))
        return rows.to(self.scale.dtype) * functional.embedding(input, self.scale[:, None])


KINDS: dict[type, type] = {torch.nn.Linear: StoredLinear, torch.nn.Embedding: StoredEmbedding}


def apply(module: torch.nn.Module, precision: str, kept: Sequence[str] = ()) -> list[Callable[[], None]]:
    """Store the weights of a model's linear layers and embeddings in fewer bytes, in place; return what undoes it.

    The layers in `kept`, subclasses, parametrized layers, weights with less than `LEAST` elements and those that
    float16 cannot hold stay as they are. Raises ExportError if nothing is left to store, or for an unknown name.
    """
    require_known(module, kept)
    spared = {id(m) for path, m in module.named_modules(remove_duplicate=False) if is_kept(own_path(path), kept)}
    layers = [m for m in module.modules() if id(m) not in spared and _is_storable(m)]
    if not layers:
        raise ExportError(
            f"there is no linear layer or embedding with {LEAST} float32 weights or more to store in {precision}",
            "choose fp32, fp16 or int8",
        )
    made: dict[int, Stored] = {}
    undo: list[Callable[[], None]] = []
    for layer in layers:
        weight: Any = layer.weight
        if id(weight) not in made:
            made[id(weight)] = store(weight, precision)
        undo.append(_exchange(layer, made[id(weight)]))
    return undo


def _is_storable(layer: Any) -> bool:
    if type(layer) not in KINDS or "forward" in vars(layer) or "weight" not in layer._parameters:
        return False
    weight = layer.weight
    if weight.dtype != torch.float32 or weight.dim() != 2 or weight.numel() < LEAST:
        return False
    if weight.device.type == "meta" or getattr(layer, "max_norm", None) is not None:  # it changes its weight
        return False
    return bool(weight.detach().abs().max() <= torch.finfo(torch.float16).max)  # False for NaN too


def _exchange(layer: Any, stored: Stored) -> Callable[[], None]:
    """Give a layer its stored weight. Its class changes in place, so that references to it and its hooks stay valid."""
    usual, parameters = type(layer), dict(layer._parameters)
    del layer._parameters["weight"]
    layer.__class__ = type(usual.__name__, (KINDS[usual],), {"__module__": usual.__module__})
    layer.register_buffer("small", stored[0])
    layer.register_buffer("scale", stored[1])

    def undo() -> None:
        del layer._buffers["small"], layer._buffers["scale"]
        layer._non_persistent_buffers_set.difference_update(("small", "scale"))
        layer.__class__ = usual
        layer._parameters.clear()
        layer._parameters.update(parameters)

    return undo


def stored(module: torch.nn.Module) -> Iterator[tuple[str, StoredLinear | StoredEmbedding]]:
    """Yield the layers with stored weights, each once, with their paths."""
    for path, inner in module.named_modules():
        if isinstance(inner, (StoredLinear, StoredEmbedding)):
            yield path, inner


@contextlib.contextmanager
def multiplied_by(module: torch.nn.Module, product: Callable[..., torch.Tensor]) -> Iterator[None]:
    """Let the linear layers with stored weights call `product(rows, small, scale)` within the context."""
    layers = [layer for _, layer in stored(module) if isinstance(layer, StoredLinear)]
    for layer in layers:
        vars(layer)["product"] = product
    try:
        yield
    finally:
        for layer in layers:
            del vars(layer)["product"]


def described(module: torch.nn.Module, precision: str) -> str:
    """Return the note for a row: what is stored how."""
    found = [layer for _, layer in stored(module)]
    linear = sum(isinstance(layer, StoredLinear) for layer in found)
    counts = ((linear, "linear layer"), (len(found) - linear, "embedding"))
    named = " and ".join(f"{count} {what}{'s' if count > 1 else ''}" for count, what in counts if count)
    return f"weights of {named} in {DTYPES[precision]}, computed in float32"
