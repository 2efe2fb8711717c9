"""An artifact, loaded without the code of its model: named tensors in, named tensors out."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

import torch

from exporter import targets as routes
from exporter.bundle import adjacent_records
from exporter.bundle.adjacent_records import Verify
from exporter.core import contract as contracts
from exporter.core import contract_files, machine_code
from exporter.core.contract_records import Contract
from exporter.core.errors import ArtifactError, ContractError, UsageError
from exporter.core.settings import SessionSettings
from exporter.model import custom_ops, flattening
from exporter.model.state import carrying
from exporter.model.tensors import Tensors


class Artifact:
    """A loaded artifact: named tensors in, named tensors out, the contract enforced. Make it with `open_artifact`.

    One that carries state (`contract.state.kept` is `inside`) goes on with each call from where the last one ended;
    its calls follow one another, from whichever thread they come.
    """

    def __init__(
        self,
        contract: Contract,
        run: Callable[[Tensors], Tensors],
        device: str,
        reset: Callable[[], object] = tuple,
    ) -> None:
        self.contract, self.device = contract, device
        self._run, self._reset = run, reset
        self._shapes: carrying.Shapes | None = None  # of the state that the artifact keeps; None before a first call
        self._turn = threading.Lock() if contracts.keeps_state(contract) else contextlib.nullcontext()

    def reset(self) -> None:
        """Begin again from the initial state; nothing to do for an artifact that carries none."""
        with self._turn:
            self._reset()
            self._shapes = None

    def stream(self) -> Stream:
        """A sequence of calls, each of which goes on from the state that the one before left.

        Raises:
            UsageError: the model keeps no state.
        """
        return Stream(self)

    def __call__(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> dict[str, torch.Tensor]:
        """Run it. Inputs in the contract's order or by name; they are moved to the device and made contiguous.

        Raises:
            ContractError: an input is missing or unknown, or its dtype, rank or size does not fit the contract, or the
                state that the artifact keeps by now.
            ArtifactError: it gives another number of outputs than its contract says.
        """
        names = [spec.name for spec in self.contract.inputs]
        tensors = _bound(names, args, kwargs)
        contracts.enforce(self.contract, flattening.specs(names, tensors))
        with self._turn:
            inside = contracts.keeps_state(self.contract)
            shapes = carrying.state_shapes(self.contract, tensors, self._shapes) if inside else None
            outputs = self._run(tuple(flattening.plain(t.to(self.device)).contiguous() for t in tensors))
            self._shapes = shapes
        if len(outputs) != len(self.contract.outputs):
            said = f"the artifact gives {len(outputs)} outputs, and its contract has {len(self.contract.outputs)}"
            raise ArtifactError(said, "export it again")
        return {spec.name: tensor for spec, tensor in zip(self.contract.outputs, outputs, strict=True)}


class Stream:
    """A sequence of calls of an artifact whose model keeps state, from the initial state on. Make it with
    `Artifact.stream`.

    Any number of streams may share an artifact that keeps its state outside: each carries its own. An artifact that
    keeps it inside has one state, which a new stream and `reset` begin again.
    """

    def __init__(self, artifact: Artifact) -> None:
        if artifact.contract.state is None:
            raise UsageError("the model keeps no state, so that its calls are no stream", "call the artifact itself")
        self._artifact = artifact
        self._names = [tensor.spec.name for tensor in artifact.contract.state.tensors]
        self._inside = contracts.keeps_state(artifact.contract)
        self.state: dict[str, torch.Tensor] = {}
        self.reset()

    def __call__(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> dict[str, torch.Tensor]:
        """The outputs of the next call, without the state. Inputs in the contract's order or by name, without it too.

        Raises:
            ContractError: an input does not fit, or is of another size than the state is by now.
        """
        if self._inside:
            return self._artifact(*args, **kwargs)
        contract = self._artifact.contract
        own = tuple(spec for spec in contract.inputs if spec.name not in self._names)
        names = [spec.name for spec in own]
        inputs = tuple(_bound(names, args, kwargs))
        contracts.enforce(replace(contract, inputs=own, state=None), flattening.specs(names, inputs))
        held = self.state or dict(zip(self._names, carrying.initial(contract, inputs), strict=True))
        carrying.require_sizes(contract, tuple(held.values()), inputs)
        given = dict(zip(names, inputs, strict=True))
        outputs = self._artifact(**given, **held)
        self.state = {name: outputs[name] for name in self._names}
        return {name: tensor for name, tensor in outputs.items() if name not in self._names}

    def reset(self) -> None:
        """Begin again from the initial state."""
        self.state = {}
        if self._inside:
            self._artifact.reset()


def _bound(names: Sequence[str], args: tuple[torch.Tensor, ...], kwargs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """The inputs of a call in the order of their names. ContractError where they are others, or no tensors."""
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
    device: str | None = None,
    threads: int | None = None,
    cuda_graphs: bool = False,
    verify: Verify = "if-present",
    public_key: str | PathLike[str] | None = None,
) -> Artifact:
    """Load an artifact without its model's code.

    Its hash is compared first with every record that lies beside it (`SHA256SUMS`, `manifest.json`, `bom.cdx.json`,
    `provenance.json`), beside a link as well as beside the file that it leads to; where there is none, the checksums
    that an archive carries itself are. Any number of threads may call what is returned.

    Args:
        path: a `.pt`, `.pt2` or `.onnx` that exporter wrote, or a link to one.
        device: `cpu`, `cuda` or `cuda:N`; where it was exported for when None.
        threads: of one onnxruntime call; torch's own setting is left alone.
        cuda_graphs: let onnxruntime capture the first 8 shapes into CUDA graphs, for each thread apart; calls follow
            one another then. A model that cannot be captured may take the process's CUDA context with it: try it first,
            by `exporter check --cuda-graphs`.
        verify: what has to vouch for the file. `if-present`: any record that is there has to know it and agree; with
            none it loads. `required`: a record has to be there. `signed`: a provenance with its hash, signed by
            `exporter sign --key` with the key to `public_key`.
        public_key: a PEM file, for `verify="signed"`.

    Raises:
        ArtifactError: the file is missing or carries no contract; or it calls operators that nobody has registered
            (torchvision's are found; load a library of your own with torch.ops.load_library first).
        AlteredError: an ArtifactError: a record contradicts the file, does not know it or cannot be read; or nothing
            vouches for it as `verify` asks.
        ContractError: it was exported for another kind of device.
        UsageError: `verify` and `public_key` contradict each other; `threads` is not 1 to 1024.
    """
    if threads is not None:
        SessionSettings(threads=threads).require_valid()
    found = adjacent_records.vouch(Path(path), verify, None if public_key is None else Path(public_key))
    file = found.path
    if not found.recorded:
        contract_files.require_whole(file)
    contract = _read_contract(file, found.target, Path(path).suffix)
    where = device or contract.device
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
        said = f"takes {loaded.takes} inputs, and its contract has {len(contract.inputs)}"
        raise ArtifactError(f"{file} {said}", "export it again")
    loaded.reset()  # whatever state the file holds
    return Artifact(contract, loaded.run, where, loaded.reset)


def _route(target: str, file: Path) -> routes.Target:
    """The target that made an artifact. ArtifactError where there is none of that name."""
    try:
        return routes.get(target)
    except UsageError as error:
        raise ArtifactError(f"{file}: its contract is of no target that is here: {error}", error.remedy) from error


def _read_contract(file: Path, target: str, suffix: str) -> Contract:
    """As the target reads it; where it is not known, as that one whose own it is of those whose artifacts end alike.

    Where it is nobody's: what the first of them reads, or says is wrong; as a zip, where there is none.
    """
    if target:
        return _route(target, file).read_contract(file)
    first: Contract | Exception | None = None
    for name, route in routes.usable().items():
        if Path(route.artifact).suffix not in (file.suffix, suffix):
            continue
        try:
            found = route.read_contract(file)
        except Exception as error:  # another package's may raise anything
            first = first or error
        else:
            if found.target == name:
                return found
            first = first if isinstance(first, Contract) else found
    if isinstance(first, Exception):
        raise first
    return first or contract_files.read_zip(file)
