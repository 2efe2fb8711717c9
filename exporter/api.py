"""The Python API: `exporter.export` and `exporter.open_artifact`. Import them from `exporter`."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import itertools
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, ParamSpec

import torch

from exporter import targets as routes
from exporter.bundle import adjacent_records
from exporter.bundle.adjacent_records import Verify
from exporter.core import contract as contracts
from exporter.core import contract_files, machine_code
from exporter.core.contract_records import FP32, Contract
from exporter.core.errors import ArtifactError, ContractError, UsageError
from exporter.core.option import pick, settings
from exporter.core.records import Manifest
from exporter.core.settings import RunSettings, SessionSettings, SourceSettings
from exporter.core.size_range import Range
from exporter.evidence import samples as own_samples
from exporter.model import custom_ops, flattening, recipes
from exporter.model.state import carrying
from exporter.model.tensors import Tensors
from exporter.runs import pipeline
from exporter.runs.request import Request


@dataclass(frozen=True)
class Bundle:
    """Where the artifacts are, and what was found of them."""

    path: Path
    manifest: Manifest = field(repr=False)

    @property
    def failed(self) -> dict[str, str]:
        """Why each variant failed that did, by its name. Empty when every one passed."""
        return {variant.name: variant.reason for variant in self.manifest.variants if variant.status == "failed"}


@dataclass(frozen=True)
class ExportArguments(RunSettings, SourceSettings):
    """What `export` takes."""

    model: torch.nn.Module | str
    inputs: Any = None
    _: KW_ONLY
    targets: str | Sequence[str] = "trace,script,compile,onnx"
    precision: str | Sequence[str] = FP32
    device: str = "cpu"
    out: str | PathLike[str] | None = None
    name: str | None = None
    sizes: Mapping[str, tuple[int, ...]] | None = None
    example_sizes: Mapping[str, int] = field(default_factory=dict)
    sweep: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    ranges: Mapping[str, Range] = field(default_factory=dict)
    samples: Callable[[], Iterable[Any]] | Iterable[Any] | None = None
    metric: Callable[[dict[str, torch.Tensor], Any], float] | None = None


def _export(given: ExportArguments) -> Bundle:
    """Export a model to a bundle.

    Args:
        model: a module in memory (it is exported in eval mode), or what the command line takes: a recipe's name,
            `file.py:NAME`, `hf:ID[@REVISION]`, `torchvision:NAME`, `timm:NAME`, or a saved program (`.pt`, `.pt2`).
        inputs: for a module: a dict of tensors by argument name, a tuple or a tensor; or a function of sizes that
            makes them (`def inputs(batch=1, sequence=14)`), without which no dimension can stay dynamic.
        targets: a list, or its items between commas; a target may name its precision, as `trace@int8`.
        precision: a list, or its items between commas, of what the other targets compute in: fp32, tf32, bf16, fp16,
            int8.
        device: `cpu`, `cuda` or `cuda:N`.
        out: the bundle's directory; `artifacts/NAME` when None. Where a variant fails that passes in the bundle that
            is there, that bundle stays, and the new one is written beside it: `Bundle.path` says where.
        name: the model's name; the module's class in lower case when None.
        sizes: for a module: the range of each size, `{"batch": (1, 64)}`, optionally with the step that sizes are
            multiples of, `{"height": (32, 512, 16)}`.
        example_sizes: the example's sizes where they differ from the defaults of its inputs, `{"sequence": 128}`.
        sweep: sizes to be timed, the example's first, `{"batch": (1, 8, 32)}`.
        ranges: what the artifacts promise of a size, within the model's own range.
        samples: for a module: real inputs in the form of `inputs`, or a function that returns them; the first 64 are
            cases of the golden, and what int8 is calibrated with.
        metric: for a module with samples: a function of the outputs by name and of the sample that they are for;
            higher is better. Its mean is shown for eager and every variant, and held against `min_metric` and
            `max_metric_loss`.
        {settings}

    Returns:
        Where the bundle is, and its manifest. A variant that fails raises nothing: see `Bundle.failed`.

    Raises:
        UsageError: the request cannot be met; nothing was written.
        JobError: a process that all variants need cannot be started.
    """
    _refuse_contradictions(given)
    chosen, precision = (one if isinstance(one, str) else ",".join(one) for one in (given.targets, given.precision))
    with tempfile.TemporaryDirectory(prefix="exporter-") as folder:
        source = _source(given, Path(folder))
        label = given.name or source.label
        precisions = routes.parse_precisions(precision)
        request: Request = pick(
            Request,
            given,
            model=label,
            source=source,
            variants=tuple(routes.parse(chosen, precisions)),
            out=Path(given.out) if given.out is not None else Path("artifacts") / label,
            sizes={size: first for size, (first, *_) in given.sweep.items()} | dict(given.example_sizes),
            command="exporter.export(...)",
            asked=given.model if isinstance(given.model, str) else "",
            warnings=routes.left_out(chosen, precisions),
        )
        manifest, path = pipeline.run(request)
    return Bundle(path, manifest)


P = ParamSpec("P")


def _with_keywords(record: Callable[P, ExportArguments]) -> Callable[P, Bundle]:
    """`_export`, called with the fields of its arguments."""
    signature = inspect.signature(record)

    def export(*args: P.args, **kwargs: P.kwargs) -> Bundle:
        if unknown := kwargs.keys() - signature.parameters.keys():
            name = min(unknown)
            close = difflib.get_close_matches(name, signature.parameters, n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise UsageError(f"export() takes no {name}", f"{hint}It takes {', '.join(signature.parameters)}")
        return _export(record(*args, **kwargs))

    known = (setting for kind in (SourceSettings, RunSettings) for setting in settings(kind))
    lines = "\n        ".join(f"{setting.name}: {setting.option.help}" for setting in known)
    export.__doc__ = (_export.__doc__ or "").replace("{settings}", lines)
    export.__signature__ = signature.replace(return_annotation=Bundle)  # type: ignore[attr-defined]
    export.__module__ = "exporter"
    return export


export = _with_keywords(ExportArguments)


def _source(given: ExportArguments, folder: Path) -> recipes.Source:
    if isinstance(given.model, str):
        return recipes.resolve(given.model, given, given.weights)
    own = {"inputs": given.inputs, "sizes": given.sizes, "samples": _listed(given.samples), "metric": given.metric}
    return recipes.adjusted(_pickle(given.model, own, folder, given.name), given)


def _refuse_contradictions(given: ExportArguments) -> None:
    """UsageError for arguments that have no effect, or contradict each other."""
    given.require_valid()
    given.require_consistent(given.weights)
    own = [name for name in ("inputs", "sizes", "samples", "metric") if getattr(given, name) is not None]
    if isinstance(given.model, str) and own:
        remedy = f"leave out {' and '.join(own)}; a recipe has inputs(), sizes, samples() and metric()"
        raise UsageError(f"{given.model} is a name, and {own[0]} is for a module in memory", remedy)
    if given.metric is not None and given.samples is None:
        raise UsageError("metric has no samples to judge by", "give samples: real inputs, in the form of inputs")
    if empty := [size for size, values in given.sweep.items() if not values]:
        raise UsageError(f"sweep names no value of {empty[0]}", "give at least one, the example's first")
    if isinstance(given.model, str):
        return
    if given.task:
        raise UsageError("task has no effect on a module", "leave it out: it is for hf:ID")
    if given.inputs_file:
        raise UsageError("inputs_file has no effect on a module", "give inputs")


def _listed(samples: Any) -> Any:
    """Samples as they can be pickled: a function, or a list of the first that an iterable gives."""
    if samples is None or callable(samples):
        return samples
    if isinstance(samples, (torch.Tensor, Mapping, str)) or not isinstance(samples, Iterable):
        raise UsageError(f"samples is {type(samples).__name__}", "give a list of inputs, or a function that gives them")
    return list(itertools.islice(samples, own_samples.MOST))


def _name(model: torch.nn.Module) -> str:
    """Its class in lower case; of TorchScript, the class that it was made from."""
    own = getattr(model, "original_name", "") if isinstance(model, torch.jit.ScriptModule) else ""
    return (own or type(model).__name__).lower()


def _pickle(model: torch.nn.Module, own: dict[str, Any], folder: Path, name: str | None) -> recipes.Source:
    """The module with what is given beside it, in a file for the processes that export it."""
    import sys

    from exporter.model import pickling  # classes and functions of a script travel by value

    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"model is {type(model).__name__}", "give a torch.nn.Module, a recipe's name or file.py:NAME")
    if own["inputs"] is None:
        raise UsageError("inputs is missing", "give a dict of tensors, or a function of sizes that makes one")
    path = folder / "model.pt"
    try:
        pickling.save((model, own), path)
    except Exception as error:
        raise UsageError(f"the model cannot be pickled: {error}", "give a recipe file instead: file.py:NAME") from error
    return recipes.Source("memory", str(path), name or _name(model), search_path=tuple(sys.path))


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
