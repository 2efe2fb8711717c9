"""Values of constants while torch.export captures a model: of its weights, and of what it computes from them alone.

`if self.started:` and `for flag in self.flags:` read a buffer, whose value torch.export hides. It never changes in an
artifact, so the capture follows the side that eager takes. State is no constant, and must be no part of the module.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakIdKeyDictionary

LARGEST = 1 << 16  # number of elements of the largest tensor whose values are followed

# Names of functions that turn a tensor's values into what Python computes with.
_READS = frozenset(("__bool__", "__float__", "__index__", "__int__", "item", "tolist"))
_FACTORIES = frozenset((
    torch.arange, torch.eye, torch.full, torch.linspace, torch.logspace, torch.ones, torch.tensor, torch.zeros,
))  # fmt: skip
_UNCHANGING = frozenset(("__index__", "__int__", "__invert__", "__iter__"))
_RANDOM = ("bernoulli", "dropout", "exponential", "multinomial", "normal", "poisson", "rand")  # in functions' names


class KnownConstants(TorchFunctionMode):
    """Follows the values of a module's weights through the functions that the module calls."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self._module = module
        self._weights = {name: one.detach() for name, one in _weights(module) if one.numel() <= LARGEST}
        self._values: Any = WeakIdKeyDictionary()  # the value of each fake tensor that is a constant
        self._first: FakeTensor | None = None  # the first weight of the capture that has begun

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named = kwargs or {}
        name = getattr(func, "__name__", "")
        self._begin()
        leaves = pytree.tree_leaves((args, named))
        tensors = [one for one in leaves if isinstance(one, torch.Tensor)]
        if name in _READS and tensors[0] in self._values:
            return _apart(func, self._values[tensors[0]])
        known = all(map(self._is_known, tensors)) if tensors else func in _FACTORIES
        known = known and not any(isinstance(one, torch.SymInt | torch.SymFloat | torch.SymBool) for one in leaves)
        known = known and not any(word in name for word in _RANDOM)
        result = func(*args, **named)
        if _writes(name, named):
            self._write(tensors, functools.partial(self._evaluate, func, args, named) if known else None)
        elif known:
            self._follow(result, functools.partial(self._evaluate, func, args, named))
        return result

    def _is_known(self, tensor: torch.Tensor) -> bool:
        return tensor in self._values or type(tensor) in (torch.Tensor, torch.nn.Parameter)  # an attribute

    def _value(self, tensor: torch.Tensor) -> Any:
        return self._values.get(tensor, tensor)

    def _begin(self) -> None:
        """Note the fake tensors that a capture, of which there may be several, has put in place of the weights."""
        first = next((one for _, one in _weights(self._module) if isinstance(one, FakeTensor)), None)
        if first is not None and first is not self._first:
            self._first = first
            for name, fake in _weights(self._module):
                if name in self._weights:
                    self._values[fake] = self._weights[name]

    def _evaluate(self, func: Callable[..., Any], args: Any, named: Any) -> Any:
        """Call a function on the values of its arguments."""
        args, named = pytree.tree_map_only(torch.Tensor, self._value, (args, named))
        return _apart(func, *args, **named)

    def _follow(self, result: Any, evaluate: Callable[[], Any]) -> None:
        """Note the values of a result, if it consists of fake tensors and its values can be computed."""
        made = pytree.tree_leaves(result)
        if not any(isinstance(one, FakeTensor) and one.numel() <= LARGEST for one in made):
            return
        try:
            values = pytree.tree_leaves(evaluate())
        except Exception:  # a kernel may lack what the fake one has
            return
        for fake, value in zip(made, values, strict=True):
            if isinstance(fake, FakeTensor) and isinstance(value, torch.Tensor) and value.shape == fake.shape:
                self._values[fake] = value

    def _write(self, tensors: Sequence[torch.Tensor], evaluate: Callable[[], Any] | None) -> None:
        """Write to the values too, or forget them and all that share their memory. Weights are not written to."""
        written = {_memory(self._values[one]) for one in tensors if one in self._values}
        own = {_memory(one) for one in self._weights.values()}
        if evaluate and not written & own and all(one in self._values for one in tensors):
            with contextlib.suppress(Exception):  # the fake tensor has accepted it
                evaluate()
                return
        for fake in [one for one, value in self._values.items() if _memory(value) in written]:
            del self._values[fake]


def _weights(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _apart(func: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Call a function on real tensors, outside of the capture."""
    with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
        return func(*args, **named)


def _writes(name: str, named: dict[str, Any]) -> bool:
    """Return whether a function writes to a tensor: `add_`, `__iadd__`, `__setitem__`, or one with `out`."""
    if name.startswith("__"):
        written = name in ("__set__", "__setitem__") or (name.startswith("__i") and name not in _UNCHANGING)
    else:
        written = name.endswith("_")
    return written or named.get("out") is not None


def _memory(value: torch.Tensor) -> int:
    return value.untyped_storage().data_ptr()
