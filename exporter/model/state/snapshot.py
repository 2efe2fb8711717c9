"""Snapshots of what a module holds besides its parameters: buffers and plain attributes, at any depth.

A place is a path of steps from the module: ("vars", NAME) into an object's attributes, ("slot", NAME) into its slots,
("item", KEY) into a container, ("script", NAME) into a TorchScript module.

This file is long because taking, comparing and restoring follow the same paths through objects.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import enum
import functools
import inspect
import re
import types
from collections.abc import Iterator
from typing import Any

import torch

from exporter.core import source_lines
from exporter.model.differentiation import ATTRIBUTE
from exporter.model.tensors import parts

Place = tuple[tuple[str, Any], ...]

MISSING = (KeyError, IndexError, AttributeError)  # what `take`, `put` and `remove` raise if nothing is at a path
COMPARED = 10_000_000  # elements; of larger tensors the version is compared, not the values
# Internal attributes of every torch module, and exporter's own; and modules whose objects hold no model state.
_OWN = frozenset(vars(torch.nn.Module())) - {"_parameters", "_buffers", "_modules", "training"} | {ATTRIBUTE}
_FOREIGN = re.compile(
    r"(?:torch|numpy|logging|threading|concurrent|tokenizers|functools|transformers\.configuration)\b"
)
SCALARS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_KEPT = ("_buffers", "_modules", "_parameters")
_HOOKS = tuple(name for name, value in vars(torch.nn.Module()).items() if name in _OWN and isinstance(value, dict))


class Form:
    """The dtype of floating-point tensors and the device to restore a module in; None keeps its own."""

    def __init__(self, dtype: torch.dtype | None = None, device: str | None = None) -> None:
        self.dtype, self.device = dtype, device

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy in this form."""
        dtype = self.dtype if tensor.is_floating_point() else None
        if self.dtype is torch.float64 and tensor.is_complex():
            dtype = torch.complex128
        return tensor.to(device=self.device, dtype=dtype, copy=True)

    @property
    def is_own(self) -> bool:
        """Return whether tensors keep their dtype and device."""
        return self.dtype is None and self.device is None


class Snapshot:
    """What a module held at construction. Parameters are watched, not copied: a changed one cannot be restored.

    `hooked` says whether `restore` ever had to remove or add hooks, because a call had registered or removed some.

    Reference: `torch.Tensor._version` counts a tensor's changes in place.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self.initial = dict(leaves(module))
        self._copies = {
            path: value.detach().clone()
            for path, value in self.initial.items()
            if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter)
        }
        self._marks = {path: _mark(v) for path, v in self.initial.items() if isinstance(v, torch.Tensor)}
        self.shared = _shared(module)
        self._containers = [one for one in _containers(module, {}).values() if one[1] is not None]
        self._hooks = hooks(module)
        self.hooked = False

    def restore(self, form: Form | None = None) -> None:
        """Restore everything; tensors may get another form."""
        form = form or Form()
        for value, content in self._containers:
            _refill(value, content)
        for held, content in self._hooks:
            if held != content:
                self.hooked = True
                _refill(held, content)
        for path, value in self.initial.items():
            if path[-1][0] == "script" and not isinstance(value, torch.Tensor):
                put(self.module, path, value)
        for path, kept in self._copies.items():
            tensor = self.initial[path]
            if path[-1][0] == "script" or kept.layout is not torch.strided:  # compressed ones ignore a new `.data`
                put(self.module, path, form.of(kept))
            elif not form.is_own or _mark(tensor) != self._marks[path] or not same(tensor, kept):
                tensor.data = form.of(kept)
                self._marks[path] = _mark(tensor) if form.is_own else ()

    def value(self, path: Place) -> Any:
        """Return the original value at a path, a tensor as a copy. Raises KeyError if there was none."""
        return self._copies[path].clone() if path in self._copies else self.initial[path]

    def changes(self) -> dict[Place, Any]:
        """Return the current values that differ, with tensors copied. Removed values are not included."""
        found: dict[Place, Any] = {}
        for path, value in leaves(self.module):
            if path in self.initial and not self._differs(path, value):
                continue
            found[path] = value.detach().clone() if isinstance(value, torch.Tensor) else value
        return found

    def _differs(self, path: Place, value: Any) -> bool:
        before = self.initial[path]
        if not isinstance(value, torch.Tensor) or not isinstance(before, torch.Tensor):
            return not equal(value, before)
        if isinstance(before, torch.nn.Parameter):
            return value is not before or _mark(value) != self._marks[path]
        if value.numel() > COMPARED:
            return value is not before or _mark(value) != self._marks[path]
        return not same(value, self._copies[path])


def _mark(tensor: torch.Tensor) -> tuple[Any, ...]:
    if tensor.is_inference():
        return ()
    addresses = (part.data_ptr() for part in parts(tensor))
    return (*addresses, tensor._version, tensor.shape, tensor.dtype)


def hooks(module: torch.nn.Module) -> list[tuple[dict[Any, Any], dict[Any, Any]]]:
    """Return the dictionaries of hooks of all modules, each with a copy of its content."""
    held = [vars(one).get(name) for one in module.modules() for name in _HOOKS]
    return [(one, dict(one)) for one in held if isinstance(one, dict)]


def tensors(module: torch.nn.Module) -> dict[Place, tuple[torch.Tensor, tuple[Any, ...]]]:
    """Return buffers and tensor attributes, each with a mark that changes when it is written to."""
    return {
        path: (value, _mark(value))
        for path, value in leaves(module)
        if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter)
    }


def written(module: torch.nn.Module, before: dict[Place, tuple[torch.Tensor, tuple[Any, ...]]]) -> set[Place]:
    """Return places of tensors that were written to or replaced since `before`, even with an equal value."""
    return {path for path, (_, mark) in tensors(module).items() if path not in before or before[path][1] != mark}


def _shared(module: torch.nn.Module) -> dict[Place, str]:
    """Return places whose tensor shares its memory with another place, each with the name of one."""
    held = tensors(module)
    names: dict[int, list[str]] = {}
    known = {name(path): value for path, (value, _) in held.items()}
    for prefix, owner in module.named_modules():
        known |= owner.named_buffers(prefix, recurse=False, remove_duplicate=False)
    for other, tensor in known.items():
        if address := _address(tensor):
            names.setdefault(address, []).append(other)
    found: dict[Place, str] = {}
    for path, (value, _) in held.items():
        others = [other for other in names.get(_address(value), []) if other != name(path)]
        if others:
            found[path] = others[0]
    return found


def _address(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's memory, or 0 if it has none."""
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided and tensor.numel() else 0


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors are equal in shape, dtype, device and values; NaN equals NaN."""
    if (one.shape, one.dtype, one.device, one.layout) != (other.shape, other.dtype, other.device, other.layout):
        return False
    if one.layout is not torch.strided:
        return all(map(same, parts(one), parts(other)))
    if one.is_floating_point() or one.is_complex():
        return bool(((one == other) | (one.isnan() & other.isnan())).all())
    return torch.equal(one, other)


def equal(one: Any, other: Any) -> bool:
    """Return whether two plain values have the same type and are equal; NaN equals NaN."""
    return type(one) is type(other) and (one is other or bool(one == other) or bool(one != one and other != other))


def leaves(module: Any) -> Iterator[tuple[Place, Any]]:
    """Yield every tensor and plain value of a module, or another object, with its path.

    An object with several paths is visited once. A tensor is yielded at all its places: `deque([zeros] * 3)` holds one
    three times until calls replace it.
    """
    yield from _leaves(module, (), set())


def _leaves(value: Any, path: Place, seen: set[int]) -> Iterator[tuple[Place, Any]]:
    if isinstance(value, (*SCALARS, torch.Tensor)):
        yield path, value
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    for step, held in _held(value):
        yield from _leaves(held, (*path, step), seen)


def _held(value: Any) -> Iterator[tuple[tuple[str, Any], Any]]:
    """Yield the parts of a container or an object, each with the step that leads to it."""
    if isinstance(value, torch.jit.ScriptModule):
        for name in _script_names(value):
            yield ("script", name), value._c.getattr(name)
        for name, child in value.named_children():
            yield ("item", name), child
    elif isinstance(value, dict):
        for key, item in list(value.items()):
            if _is_plain(key):
                yield ("item", key), item
    elif isinstance(value, (list, tuple, collections.deque)):
        for index, item in enumerate(value):
            yield ("item", index), item
    elif _is_object(value):
        for name, item in list(getattr(value, "__dict__", {}).items()):
            if not (isinstance(value, torch.nn.Module) and name in _OWN):
                yield ("vars", name), item
        for name in _slots(value):
            with contextlib.suppress(AttributeError):  # an empty slot
                yield ("slot", name), getattr(value, name)


def _slots(value: Any) -> Iterator[str]:
    """Yield the names of an object's slots."""
    for base in type(value).__mro__:
        names = vars(base).get("__slots__", ())
        yield from (name for name in ([names] if isinstance(names, str) else names) if not name.startswith("__"))


def _is_plain(key: Any) -> bool:
    return isinstance(key, (*SCALARS, enum.Enum)) or (isinstance(key, tuple) and all(map(_is_plain, key)))


def _is_object(value: Any) -> bool:
    if isinstance(value, torch.nn.Module):
        return True
    if isinstance(value, (type, types.ModuleType, types.FunctionType, types.MethodType, functools.partial)):
        return False
    has_any = hasattr(value, "__dict__") or any(_slots(value))
    return has_any and not _FOREIGN.match(type(value).__module__)


def _script_names(module: torch.jit.ScriptModule) -> list[str]:
    """Return the names of a TorchScript module's buffers and of the attributes that its methods assign to."""
    buffers: Any = torch._C.BufferDict(module._c)
    assigned: dict[str, None] = dict.fromkeys(name for name, _ in buffers.items())
    for name in module._c._method_names():
        text = str(module._c._get_method(name).graph)
        assigned |= dict.fromkeys(re.findall(r'prim::SetAttr\[name="(\w+)"\]\(%self\S*,', text))
    return [name for name in assigned if module._c.hasattr(name)]


def objects(value: Any) -> dict[int, Any]:
    """Return every tensor, container and object in a value, by id."""
    tensors = {id(one): one for _, one in leaves(value) if isinstance(one, torch.Tensor)}
    return tensors | {key: one for key, (one, _) in _containers(value, {}).items()}


def _containers(value: Any, seen: dict[int, tuple[Any, Any]]) -> dict[int, tuple[Any, Any]]:
    """Return every container and object in a value with its direct content, by id."""
    if isinstance(value, (*SCALARS, torch.Tensor)) or id(value) in seen:
        return seen
    held = list(_held(value))
    if isinstance(value, (list, collections.deque)):
        seen[id(value)] = value, list(value)
    elif isinstance(value, dict):
        seen[id(value)] = value, dict(value)
    elif not isinstance(value, tuple) and _is_object(value) and not isinstance(value, torch.jit.ScriptModule):
        seen[id(value)] = value, dict(held)
    else:
        seen[id(value)] = value, None
    for _, item in held:
        _containers(item, seen)
    return seen


def _refill(value: Any, content: Any) -> None:
    """Restore the direct content of a container or an object; unchanged items are not touched."""
    if isinstance(value, (list, collections.deque)):
        if len(value) != len(content) or any(one is not other for one, other in zip(value, content, strict=True)):
            value.clear()
            value.extend(content)
        return
    if not isinstance(value, dict):
        for (kind, name), item in content.items():
            if kind == "slot" and getattr(value, name, content) is not item:
                object.__setattr__(value, name, item)
        for name in _slots(value):
            if ("slot", name) not in content and hasattr(value, name):
                object.__delattr__(value, name)
        content = {name: item for (kind, name), item in content.items() if kind == "vars"}
    held = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    own = _OWN if isinstance(value, torch.nn.Module) else frozenset()
    for name in [name for name in held if name not in content and name not in own]:
        del held[name]
    for name, item in content.items():
        if name not in held or held[name] is not item:
            held[name] = item


def copied(module: torch.nn.Module, device: str) -> torch.nn.Module:
    """Return a copy of a module on a device, including tensors at any depth; shared tensors stay shared."""
    memo: dict[int, Any] = {}
    for _, value in leaves(module):
        if isinstance(value, torch.Tensor) and id(value) not in memo:
            moved = value.detach().to(device, copy=True)
            memo[id(value)] = torch.nn.Parameter(moved, False) if isinstance(value, torch.nn.Parameter) else moved
    return copy.deepcopy(module, memo).to(device)


def detach(module: torch.nn.Module) -> None:
    """Detach the tensors that a module computed from its parameters, as `torch.nn.utils.weight_norm` does."""
    for path, value in list(leaves(module)):
        if isinstance(value, torch.Tensor) and value.grad_fn is not None:
            put(module, path, value.detach())


def take(module: torch.nn.Module, path: Place) -> Any:
    """Return the value at a path. Raises KeyError, IndexError or AttributeError if there is none."""
    value: Any = module
    for kind, key in path:
        value = _follow(value, kind, key)
    return value


def _follow(value: Any, kind: str, key: Any) -> Any:
    if kind == "vars":
        return value.__dict__[key]  # vars() would raise TypeError
    if kind == "slot":
        return getattr(value, key)
    return value._c.getattr(key) if kind == "script" else _item(value, key)


def _item(value: Any, key: Any) -> Any:
    if isinstance(value, torch.jit.ScriptModule):
        return getattr(value, key)
    if isinstance(value, torch.Tensor):
        raise KeyError(key)
    try:
        return value[key]
    except TypeError:  # None, where a call puts a container, or one of another type
        raise KeyError(key) from None


def put(module: torch.nn.Module, path: Place, new: Any) -> None:
    """Put a value at a path; a tuple that contains the path is replaced by a new one."""
    *above, (kind, key) = path
    parent = take(module, tuple(above))
    if kind == "script":
        parent._c.setattr(key, new)
    elif isinstance(parent, tuple):
        items = [new if index == key else item for index, item in enumerate(parent)]
        put(module, tuple(above), type(parent)(*items) if hasattr(parent, "_fields") else tuple(items))
    elif kind == "slot":
        object.__setattr__(parent, key, new)  # works for frozen dataclasses too
    elif kind == "vars":
        parent.__dict__[key] = new
    elif hasattr(parent, "__setitem__") and not isinstance(parent, torch.Tensor):
        parent[key] = new
    else:
        raise KeyError(key)


def remove(module: torch.nn.Module, path: Place) -> None:
    """Remove the value at a path."""
    *above, (kind, key) = path
    parent = take(module, tuple(above))
    if kind == "vars":
        parent.__dict__.pop(key, None)
    elif kind == "slot":
        object.__delattr__(parent, key)
    elif isinstance(parent, (list, collections.deque, dict)):
        del parent[key]


def name(path: Place) -> str:
    """Return a place's name: `encoder.context` for a buffer of `encoder`, `hidden.0` for an item of a tuple."""
    return ".".join(_key(key) for kind, key in path if not (kind == "vars" and key in _KEPT))


def _key(key: Any) -> str:
    return ".".join(map(_key, key)) if isinstance(key, tuple) else str(key)


def place(module: torch.nn.Module, path: Place) -> str:
    """Return `file:line` where a method other than a constructor first assigns to the attribute, or ""."""
    owner, attribute = module, ""
    value: Any = module
    for index, (kind, key) in enumerate(path):
        held = kind == "item" and index and path[index - 1] in (("vars", "_buffers"), ("vars", "_parameters"))
        if held or (kind == "vars" and key not in _KEPT and isinstance(value, torch.nn.Module)):
            attribute = key
        value = take(module, path[: index + 1]) if index + 1 < len(path) else None
        if isinstance(value, torch.nn.Module):
            owner, attribute = value, ""
        elif attribute and not held:
            break
    return _assignment(type(owner), attribute) if attribute else ""


def _assignment(kind: type, attribute: str) -> str:
    target = re.compile(
        rf"(?:\w+\.)+{re.escape(attribute)}\b(?:\[[^\]]*\])*(?:\.\w+)*(?:\s*[-+*/|&@]?=(?!=)|\.\w+_\(|\.append\()"
        rf"|,\s*\w+\.{re.escape(attribute)}\b.*=(?!=)|setattr\(.*{re.escape(attribute)}"
    )
    for base in kind.__mro__:
        if base.__module__.startswith("torch."):
            break
        for method in vars(base).values():
            if not inspect.isfunction(method) or method.__name__ in ("__init__", "__setstate__"):
                continue
            try:
                lines, first = inspect.getsourcelines(method)
            except (OSError, TypeError):
                continue
            for offset, line in enumerate(lines):
                if target.search(line):
                    return source_lines.shown(method.__code__.co_filename, first + offset)
    return ""
