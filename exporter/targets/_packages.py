"""Load compiled packages.

Torch 2.14 never frees its references to weights that the caller manages. A model whose weights are mapped is therefore
kept when it is closed, without its weights, and used again when a package with the same content is opened.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporter.targets import _mapping, _printed_reasons, _unpacking

if TYPE_CHECKING:
    import torch

    from exporter.model.tensors import Tensors

_lock = threading.RLock()  # concurrent construction of loaders is a race (pytorch/pytorch#194128)
_closed: dict[tuple[object, ...], list[tuple[Any, _mapping.Weights]]] = {}


def open_models(path: Path, names: Sequence[str], device: str) -> dict[str, Package]:
    """Load several models of a package. The others may use weights of the first. Raise errors like `Package`."""
    found: dict[str, Package] = {}
    for name in names:
        found[name] = Package(path, name, device, found[names[0]] if found else None)
    return found


class Package:
    """A loaded model of a package."""

    def __init__(self, path: Path, model: str, device: str, beside: Package | None = None) -> None:
        """Load the model, which may use weights of the model `beside` it.

        Raise ArtifactError if the package was altered, RuntimeError if it does not run here.
        """
        self._weights: _mapping.Weights | None = None
        self._reasons = _printed_reasons.Reasons()
        self._beside = beside  # its weights are in use as long as this model is
        with _lock:
            if loads_folders():
                self._load(path, model, device)
            else:  # torch unpacks the package at every load and never frees the space
                self._loader = _make(path, model, device)

    def _load(self, path: Path, model: str, device: str) -> None:
        blob = _mapping.find(path, model)
        shared = self._beside._weights if self._beside else None
        key = (_unpacking.content(path), model, device, blob and blob.start, shared and shared.address)
        if blob and (known := _closed.get(key)):
            self._loader, self._weights = known[-1]
            self._weights.fill(blob)
            known.pop()
        else:
            unpacked = _unpacking.unpack(path)
            try:
                self._loader = _make(unpacked.folder, model, device)
                if blob:
                    self._weights = _mapping.Weights(blob, shared)
                    self._weights.fill(blob)
                    self._loader.update_constant_buffer(self._weights.tensors, False, True, True)
            except BaseException:
                unpacked.release()
                raise
            if device == "cpu":  # GPU kernels are loaded when they first run
                unpacked.remove_folder()
            if not blob:
                weakref.finalize(self._loader, unpacked.release).atexit = False
        if self._weights:
            weakref.finalize(self, _close, key, self._loader, self._weights).atexit = False

    def run(self, inputs: Tensors) -> Tensors:
        """Call the model."""
        try:
            return tuple(self._loader.run(list(inputs)))
        except RuntimeError as error:
            if found := self._reasons.of(error):
                raise RuntimeError(found) from error
            raise

    def inputs(self) -> int:
        """Return the number of inputs for which the package was compiled."""
        from torch.utils import _pytree

        takes, _ = self._loader.get_call_spec()
        return _pytree.treespec_loads(takes).num_leaves

    def set_constants(self, constants: Mapping[str, torch.Tensor]) -> None:
        """Write values into these constants of the model; the others stay."""
        if not self._weights:
            self._loader.load_constants(dict(constants), False, False)
            return
        for name, values in constants.items():
            self._weights.tensors[name].copy_(values)


def loads_folders() -> bool:
    """Return whether torch's loader accepts an unpacked package, as it does since 2.14."""
    import torch

    major, minor = map(int, torch.__version__.split(".")[:2])
    return (major, minor) >= (2, 14)


def _make(path: Path, model: str, device: str) -> Any:
    import torch

    return torch._C._aoti.AOTIModelPackageLoader(str(path), model, False, 1, int(device.partition(":")[2] or -1))


def _close(key: tuple[object, ...], loader: Any, weights: _mapping.Weights) -> None:
    with _lock, suppress(OSError):
        weights.drop()
        _closed.setdefault(key, []).append((loader, weights))
