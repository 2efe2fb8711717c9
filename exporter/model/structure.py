"""Traversing structures of tensors one level at a time: containers, registered pytrees and objects with attributes.

A cache of transformers is such an object; its layers are named by their numbers, whatever their class stores.
"""

from __future__ import annotations

import copy
import enum
import types
from collections.abc import Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

Children = list[tuple[str, Any]]
SHORT = {"keys": "key", "values": "value"}  # attributes of a cache's layer, with their names in contracts
_CLOSED = (  # types that contain no tensor of a call, or are tensors
    torch.Tensor,
    torch.nn.Module,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.Generator,
    torch.SymInt,
    torch.SymFloat,
    torch.SymBool,
    type,
    str,
    bytes,
    int,
    float,
    complex,
    enum.Enum,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.ModuleType,
)


def contained(value: Any) -> Children | None:
    """Return the named items of a container or a registered pytree; None for anything else."""
    if value is None or isinstance(value, _CLOSED):
        return None
    if type(value) is list or type(value) is tuple:
        return [(str(i), item) for i, item in enumerate(value)]
    if type(value) is dict:
        return [(str(key), item) for key, item in value.items()]
    if not is_cache(value) and (node := _registered(value)) is not None:
        if node.flatten_with_keys_fn is None:
            return [(str(i), item) for i, item in enumerate(node.flatten_fn(value)[0])]
        return [(key_name(key), item) for key, item in node.flatten_with_keys_fn(value)[0]]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    if isinstance(value, MutableMapping):
        return [(str(key), item) for key, item in value.items()]
    if isinstance(value, (tuple, MutableSequence)):
        return [(str(i), item) for i, item in enumerate(value)]
    return None


def attributes(value: Any) -> Children:
    """Return the attributes of an object that is not a container; a cache's layers are named by their numbers."""
    if value is None or isinstance(value, _CLOSED):
        return []
    found: Children = []
    for name in _attribute_names(value):
        item = getattr(value, name)
        if name == "layers" and isinstance(item, list):
            found += [(str(i), layer) for i, layer in enumerate(item)]
        else:
            found.append((SHORT.get(name, name), item))
    return found


def with_attributes(value: Any, items: Sequence[Any]) -> Any:
    """Return a copy of an object with `items` in place of what `attributes` returns."""
    made, rest = copy.copy(value), list(items)
    for name in _attribute_names(value):
        old = getattr(value, name)
        size = len(old) if name == "layers" and isinstance(old, list) else 1
        new, rest = rest[:size], rest[size:]
        object.__setattr__(made, name, new if name == "layers" and isinstance(old, list) else new[0])
    return made


def with_items(value: Any, items: Sequence[Any]) -> Any:
    """Return a container like `value` with other items, in the order of `contained`."""
    if type(value) is list or type(value) is tuple:
        return type(value)(items)
    if type(value) is dict:
        return dict(zip(value, items, strict=True))
    if not is_cache(value) and (node := _registered(value)) is not None:
        return node.unflatten_fn(list(items), node.flatten_fn(value)[1])
    if isinstance(value, tuple):
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    made = copy.copy(value)
    for key, item in zip(value if isinstance(value, Mapping) else range(len(value)), items, strict=True):
        made[key] = item
    return made


def holds_tensors(value: Any, inside: tuple[Any, ...] = ()) -> bool:
    """Return whether a value contains a tensor at any depth."""
    if isinstance(value, torch.Tensor):
        return True
    if holds_itself(value, inside):
        return False
    items = contained(value)
    return any(holds_tensors(item, (*inside, value)) for _, item in (attributes(value) if items is None else items))


def holds_itself(value: Any, inside: Sequence[Any]) -> bool:
    """Return whether a value is one of its own containers. Any cycle through a tuple includes another container."""
    if isinstance(value, tuple):  # torch.compile cannot compare tuples by identity
        return False
    return any(value is other for other in inside if not isinstance(other, tuple))


def is_cache(value: Any) -> bool:
    """Return whether a value is a cache of transformers, however it is registered with pytree."""
    return isinstance(getattr(value, "layers", None), list) and hasattr(value, "get_seq_length")


def key_name(key: Any) -> str:
    """Return a pytree key as a part of a name."""
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _registered(value: Any) -> Any:
    return pytree.SUPPORTED_NODES.get(type(value))


def _attribute_names(value: Any) -> list[str]:
    slots = [name for cls in type(value).__mro__ for name in _slots(cls) if hasattr(value, name)]
    names = [name for name in dict.fromkeys([*getattr(value, "__dict__", {}), *slots]) if not _is_setting(value, name)]
    return [*(name for name in names if name in SHORT), *(name for name in names if name not in SHORT)]


def _is_setting(value: Any, name: str) -> bool:
    """Return whether an attribute is a private zero-dimensional tensor, such as a window's width."""
    item = getattr(value, name)
    return name[0] == "_" and isinstance(item, torch.Tensor) and item.dim() == 0


def _slots(cls: type) -> tuple[str, ...]:
    slots = cls.__dict__.get("__slots__", ())
    named = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in named if name not in ("__dict__", "__weakref__"))
