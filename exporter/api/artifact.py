"""Load an artifact without its model's code, and call it with named tensors."""

from __future__ import annotations

import contextlib
import threading
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

import torch

from exporter import targets as routes
from exporter.api import forks
from exporter.bundle import adjacent_records
from exporter.bundle.adjacent_records import Verify
from exporter.core import contract as contracts
from exporter.core import contract_files, environment, machine_code
from exporter.core.contract_records import Contract, TensorSpec
from exporter.core.errors import ArtifactError, ContractError, UsageError
from exporter.core.settings import SessionSettings
from exporter.model import custom_ops, flattening
from exporter.model.state import carrying
from exporter.model.tensors import Tensors, unusual_form


class Artifact:
    """A loaded artifact, which takes and returns named tensors and enforces its contract. Make it with `open_artifact`.

    If the artifact carries state (`contract.state.kept` is `inside`), each call continues from the state that the last
    one left, and calls from several threads run one after another.
    """

    def __init__(
        self,
        contract: Contract,
        run: Callable[[Tensors], Tensors],
        device: str,
        reset: Callable[[], object] = tuple,
        own_threads: bool = False,
    ) -> None:
        self.contract, self.device = contract, device
        self._run, self._reset, self._own_threads = run, reset, own_threads
        self._shapes: carrying.Shapes | None = None  # of the state inside the artifact; None before the first call
        self._turn = threading.Lock() if contracts.keeps_state(contract) else contextlib.nullcontext()

    def __reduce__(self) -> str:
        """Raise TypeError: what a runtime has loaded cannot be pickled."""
        raise TypeError("an Artifact cannot be pickled; open it again with open_artifact(path) where it is needed")

    def __copy__(self) -> Artifact:
        """Return the same artifact, as for a function."""
        return self

    def __deepcopy__(self, memo: object) -> Artifact:
        """Return the same artifact. Raises TypeError if it carries state, which a deep copy must not share."""
        if contracts.keeps_state(self.contract):
            raise TypeError("an Artifact that carries state cannot be copied; open it again with open_artifact(path)")
        return self

    def reset(self) -> None:
        """Restore the initial state. Has no effect on an artifact that carries no state."""
        with self._turn:
            self._reset()
            self._shapes = None

    def stream(self) -> Stream:
        """Return a stream: a sequence of calls, each of which continues from the state that the last one left.

        Raises:
            UsageError: the model keeps no state.
        """
        return Stream(self)

    def __call__(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> dict[str, torch.Tensor]:
        """Run the artifact and return its outputs by name.

        Pass the inputs in the contract's order or by name. They are moved to the device and made contiguous. Outputs
        may share memory with the inputs or one another, but never with the artifact.

        Raises:
            ContractError: an input is missing or unknown, or its dtype, rank or size does not fit the contract or the
                current state of the artifact.
            ArtifactError: the number of outputs differs from the contract.
            UsageError: the process was forked after a call, and torch has more than one thread.
        """
        names = [spec.name for spec in self.contract.inputs]
        tensors = _bound(names, args, kwargs)
        contracts.enforce(self.contract, _specs(names, tensors))
        if not self._own_threads or not all(
            tensor.is_contiguous() for tensor in tensors
        ):  # torch makes them contiguous
            forks.require_threads()
        with self._turn:
            inside = contracts.keeps_state(self.contract)
            shapes = carrying.state_shapes(self.contract, tensors, self._shapes) if inside else None
            outputs = self._run(tuple(flattening.plain(t.to(self.device)).contiguous() for t in tensors))
            self._shapes = shapes
        if len(outputs) != len(self.contract.outputs):
            cause = f"the artifact returns {len(outputs)} outputs, but its contract has {len(self.contract.outputs)}"
            raise ArtifactError(cause, "export it again")
        return {spec.name: tensor for spec, tensor in zip(self.contract.outputs, outputs, strict=True)}


class Stream:
    """A sequence of calls, from the initial state on, of an artifact with state. Make it with `Artifact.stream`.

    If callers keep the state, any number of streams may share the artifact, and each has its own state. If the artifact
    keeps the state inside, there is only one, which a new stream and `reset` set to the initial state.
    """

    def __init__(self, artifact: Artifact) -> None:
        if artifact.contract.state is None:
            raise UsageError("the model keeps no state, so it has no streams", "call the artifact itself")
        self._artifact = artifact
        self._names = [tensor.spec.name for tensor in artifact.contract.state.tensors]
        self._inside = contracts.keeps_state(artifact.contract)
        self.state: dict[str, torch.Tensor] = {}
        self.reset()

    def __call__(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> dict[str, torch.Tensor]:
        """Run the next call and return its outputs by name, without the state.

        Pass the inputs, without the state, in the contract's order or by name.

        Raises:
            ContractError: an input does not fit the contract, or its size differs from that of the current state.
        """
        if self._inside:
            return self._artifact(*args, **kwargs)
        contract = self._artifact.contract
        own = tuple(spec for spec in contract.inputs if spec.name not in self._names)
        names = [spec.name for spec in own]
        inputs = tuple(_bound(names, args, kwargs))
        contracts.enforce(replace(contract, inputs=own, state=None), _specs(names, inputs))
        held = self.state or dict(zip(self._names, carrying.initial(contract, inputs), strict=True))
        carrying.require_sizes(contract, tuple(held.values()), inputs)
        given = dict(zip(names, inputs, strict=True))
        outputs = self._artifact(**given, **held)
        self.state = {name: outputs[name] for name in self._names}
        return {name: tensor for name, tensor in outputs.items() if name not in self._names}

    def reset(self) -> None:
        """Restore the initial state."""
        self.state = {}
        if self._inside:
            self._artifact.reset()


def _specs(names: Sequence[str], tensors: Sequence[torch.Tensor]) -> tuple[TensorSpec, ...]:
    """Return the specs of inputs. Raises ContractError if one is not dense."""
    for name, tensor in zip(names, tensors, strict=True):
        if form := unusual_form(tensor):
            raise ContractError(f"{name} is {form}, the contract wants a dense tensor")
    return flattening.specs(names, tensors)


def _bound(names: Sequence[str], args: tuple[torch.Tensor, ...], kwargs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """Return a call's inputs in the order of `names`. Raises ContractError if they do not match or are not tensors."""
    given = dict(zip(names, args, strict=False)) | kwargs
    problem = ""
    if len(args) > len(names):
        problem = f"{len(args)} inputs given"
    elif unknown := given.keys() - set(names):
        problem = f"there is no input {sorted(unknown)[0]}"
    elif missing := [n for n in names if n not in given]:
        problem = f"input {missing[0]} is missing"
    if problem or len(given) != len(args) + len(kwargs):
        raise ContractError(f"{problem or 'an input is given twice'}: the contract has {', '.join(names)}")
    for name in names:
        if not isinstance(given[name], torch.Tensor):
            raise ContractError(f"{name} is {type(given[name]).__name__}, not a tensor")
    return [given[n] for n in names]


def open_artifact(
    path: str | PathLike[str],
    device: str | torch.device | None = None,
    threads: int | None = None,
    cuda_graphs: bool = False,
    verify: Verify = "if-present",
    public_key: str | PathLike[str] | None = None,
) -> Artifact:
    """Load an artifact without its model's code.

    Its hash is first compared with every record in its folder: `SHA256SUMS`, `manifest.json`, `bom.cdx.json` and
    `provenance.json`. If the path is a link, the records beside the link are checked too. If there are no records, the
    checksums inside the archive are verified. Any number of threads may call the returned artifact.
    A process that forks must do so before the first call, or call `torch.set_num_threads(1)` in the child. Models that
    onnxruntime runs need neither.

    The weights of a compiled package are mapped from the file: do not overwrite or truncate it while the artifact is
    in use. It may be replaced by another file, or deleted.

    Args:
        path: a `.pt`, `.pt2` or `.onnx` file that exporter wrote, or a link to one.
        device: `cpu`, `cuda` or `cuda:N`, or a torch.device; by default the one that the artifact was exported for.
        threads: number of threads of one onnxruntime call. The setting of torch is left unchanged.
        cuda_graphs: let onnxruntime capture the first 8 shapes into CUDA graphs, separately for each thread; calls then
            run one after another. A model that cannot be captured may break the CUDA context of the process, so try
            `exporter check --cuda-graphs` first.
        verify: the records that are required. `if-present`: every record in the folder must list the file and match
            it; if there are none, the file is loaded. `required`: there must be a record. `signed`: there must be a
            provenance with the file's hash, signed by `exporter sign --key` with the key that belongs to `public_key`.
        public_key: a PEM file, for `verify="signed"`.

    Raises:
        ArtifactError: the file is missing, is a directory or has no contract, or it calls operators that are not
            registered (torchvision's are loaded; load your own library with torch.ops.load_library first).
        AlteredError: an ArtifactError: a record contradicts the file, does not list it or cannot be read, or the
            records do not satisfy `verify`.
        ContractError: the artifact was exported for another kind of device.
        UsageError: there is no such device, `verify` and `public_key` contradict each other, or `threads` is not
            between 1 and 1024.
    """
    if threads is not None:
        SessionSettings(threads=threads).require_valid()
    if Path(path).is_dir():
        raise ArtifactError(f"{path or '.'} is a directory", "give the path of an artifact in it, such as trace.pt")
    found = adjacent_records.vouch(Path(path), verify, None if public_key is None else Path(public_key))
    file = found.path
    if not found.recorded:
        contract_files.require_whole(file)
    contract = _read_contract(file, found.target, Path(path).suffix)
    where = str(device or contract.device)
    environment.require_device(where)
    if where.partition(":")[0] != contract.device:
        raise ContractError(
            f"{file} was exported for {contract.device}, not for {where}", "export it again with --device"
        )
    options = routes.Options(
        device=where, threads=torch.get_num_threads() if threads is None else threads, cuda_graphs=cuda_graphs
    )
    custom_ops.require(contract.ops)
    if contract.build is not None:
        machine_code.require(contract.build, file)
    loaded = _route(contract.target, file).load(file, options)
    if loaded.takes not in (None, len(contract.inputs)):
        cause = f"takes {loaded.takes} inputs, but its contract has {len(contract.inputs)}"
        raise ArtifactError(f"{file} {cause}", "export it again")
    loaded.reset()  # the file may hold any state

    def run(inputs: Tensors) -> Tensors:
        return loaded.own(loaded.run(inputs), inputs)

    return Artifact(contract, run, where, loaded.reset, loaded.own_threads)


def _route(target: str, file: Path) -> routes.Target:
    """Return the target that made an artifact. Raises ArtifactError if the target is unknown."""
    try:
        return routes.get(target)
    except UsageError as error:
        raise ArtifactError(f"{file}: the target in its contract is unknown: {error}", error.remedy) from error


def _read_contract(file: Path, target: str, suffix: str) -> Contract:
    """Read the contract as its target does.

    If the target is unknown, try every target with the same suffix until one reads a contract of its own. If none does,
    the first contract read or else the first error counts. If no target has the suffix, read the file as a zip.
    """
    if target:
        return _route(target, file).read_contract(file)
    first: Contract | Exception | None = None
    for name, route in routes.usable().items():
        if Path(route.artifact).suffix not in (file.suffix, suffix):
            continue
        try:
            found = route.read_contract(file)
        except Exception as error:  # a target from another package may raise anything
            first = first or error
        else:
            if found.target == name:
                return found
            first = first if isinstance(first, Contract) else found
    if isinstance(first, Exception):
        raise first
    if first is None and not zipfile.is_zipfile(file):
        cause = f"{file} is not an artifact: it is neither an archive of torch nor an ONNX model"
        raise ArtifactError(cause, "open a file that `exporter export` wrote for a target, such as trace.pt")
    return first or contract_files.read_zip(file)
