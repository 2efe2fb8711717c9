"""The Python API: `exporter.export` and `exporter.open_artifact`. Import them from `exporter`."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from exporter import targets as routes
from exporter.bundle import adjacent_records
from exporter.bundle.adjacent_records import Verify
from exporter.core import contract as contracts
from exporter.core import environment, machine_code
from exporter.core.errors import ArtifactError, ContractError, UsageError
from exporter.core.records import Contract, Manifest
from exporter.evidence import samples as own_samples
from exporter.model import custom_ops, flattening, recipes
from exporter.model.state import carrying
from exporter.model.tensors import Tensors
from exporter.runs import pipeline
from exporter.runs.request import Request, require_threads

if TYPE_CHECKING:
    from os import PathLike


# Fields of Request that `export` takes as they are; of the others it has arguments of its own, or sets them.
OPTIONS = frozenset((
    "device", "ranges", "sweep", "dynamic", "state", "weights", "seed", "threads", "time_budget", "wait_quiet",
    "timeout", "bench", "memory_limit_gb", "rtol", "atol", "min_metric", "max_metric_loss", "opset",
    "allow_cpu_fallback", "cuda_graphs", "fullgraph", "portable", "ops_libs", "replace",
))  # fmt: skip


@dataclass(frozen=True)
class Bundle:
    """Where the artifacts are, and what was found of them."""

    path: Path
    manifest: Manifest = field(repr=False)

    @property
    def failed(self) -> dict[str, str]:
        """Why each variant failed that did, by its name. Empty when every one passed."""
        return {variant.name: variant.reason for variant in self.manifest.variants if variant.status == "failed"}


def export(
    model: torch.nn.Module | str,
    inputs: Any = None,
    *,
    sizes: Mapping[str, tuple[int, ...]] | None = None,
    example_sizes: Mapping[str, int] | None = None,
    targets: str | Sequence[str] = "trace,script,compile,onnx",
    precision: str | Sequence[str] = "fp32",
    out: str | PathLike[str] | None = None,
    name: str | None = None,
    checkpoint: str | PathLike[str] | None = None,
    allow_partial: bool = False,
    task: str = "",
    dims: Sequence[str] = (),
    leave_out: Sequence[str] = (),
    samples: Callable[[], Iterable[Any]] | Iterable[Any] | None = None,
    metric: Callable[[dict[str, torch.Tensor], Any], float] | None = None,
    **options: Any,
) -> Bundle:
    """Export a model to a bundle.

    Args:
        model: a module in memory (in eval mode or not; it is exported in eval mode), or what the command line takes: a
            recipe's name, `file.py:NAME`, `hf:ID[@REVISION]`, `torchvision:NAME`, `timm:NAME`, or a saved program
            (`.pt`, `.pt2`).
        inputs: for a module: a dict of tensors by argument name, a tuple or a tensor; or a function of sizes that
            makes them (`def inputs(batch=1, sequence=14)`), without which no dimension can stay dynamic.
        sizes: for a module: the range of each size, `{"batch": (1, 64)}`, on wish with the step that sizes are
            multiples of, `{"height": (32, 512, 16)}`.
        example_sizes: the example's sizes where they are not the defaults of its inputs, `{"sequence": 128}`.
        targets: a list, or its items between commas; a target may name its precision, as `trace@int8`.
        precision: a list, or its items between commas, of what the other targets compute in: fp32, tf32, bf16, fp16,
            int8.
        out: the bundle's directory; `artifacts/NAME` when None. Where a variant fails and a bundle is there in which
            one passes that would be gone, it stays, and the new one is beside it: `Bundle.path` says where.
        name: the model's name; the module's class in lower case when None.
        checkpoint: a file of weights, as the command line's `--checkpoint`.
        allow_partial: load of the checkpoint what fits, and warn of the rest.
        task: for `hf:ID`: the task whose model class is taken.
        dims: for a saved program, and a module whose inputs are no function: dimensions that are dynamic, by name, as
            `["batch=x:0", "samples=x:1:256..16000"]`.
        leave_out: names of outputs that no artifact is to give, as `["past_key_values"]`.
        samples: for a module: real inputs in the form of `inputs`, or a function that gives them; the first 64 are
            cases of the golden, and what int8 is calibrated with.
        metric: for a module with samples: a function of the outputs by name and of the sample that they are for; higher
            is better. Its mean is shown for eager and every variant, and held against `min_metric` and
            `max_metric_loss`.
        options: as the command line's, by their names in `exporter.runs.request.Request`: device (`cpu` when none is
            given, unlike the command line's), ranges, sweep, dynamic, state, weights, seed, threads, time_budget,
            wait_quiet, timeout, bench, memory_limit_gb, rtol, atol, min_metric, max_metric_loss, opset,
            allow_cpu_fallback, cuda_graphs, fullgraph, portable, ops_libs, replace.

    Raises:
        UsageError: the request cannot be met; nothing was written.
        JobError: a process that all variants need cannot be started.

    A variant that fails raises nothing: ask `Bundle.failed`.
    """
    targets, precision = (one if isinstance(one, str) else ",".join(one) for one in (targets, precision))
    if unknown := options.keys() - OPTIONS:
        raise UsageError(f"export() takes no {min(unknown)}", f"it takes {', '.join(sorted(OPTIONS))}")
    own = {"inputs": inputs, "sizes": sizes, "samples": samples, "metric": metric}
    _refuse_contradictions(model, own, checkpoint, allow_partial, task, options)
    with tempfile.TemporaryDirectory(prefix="exporter-") as folder:
        if isinstance(model, str):
            source = recipes.find(model, task=task)
        else:
            source = _pickle(model, own | {"samples": _listed(samples)}, Path(folder), name)
        source = replace(recipes.with_dims(source, dims), leave_out=tuple(leave_out))
        if checkpoint is not None:
            source = replace(source, checkpoint=str(Path(checkpoint).absolute()), allow_partial=allow_partial)
        label = name or source.label
        precisions = routes.parse_precisions(precision)
        settings: dict[str, Any] = {"threads": environment.usable_cpus()} | options
        request = Request(
            label,
            source,
            tuple(routes.parse(targets, precisions)),
            Path(out) if out is not None else Path("artifacts") / label,
            sizes={size: first for size, (first, *_) in options.get("sweep", {}).items()} | dict(example_sizes or {}),
            command="exporter.export(...)",
            asked=model if isinstance(model, str) else "",
            warnings=routes.left_out(targets, precisions),
            **settings,
        )
        manifest, path = pipeline.run(request)
    return Bundle(path, manifest)


def _refuse_contradictions(
    model: Any, own: dict[str, Any], checkpoint: Any, allow_partial: bool, task: str, options: Mapping[str, Any]
) -> None:
    """UsageError for arguments that say nothing, or two things."""
    given = [name for name, value in own.items() if value is not None]
    if isinstance(model, str) and given:
        remedy = f"leave out {' and '.join(given)}; a recipe has inputs(), sizes, samples() and metric()"
        raise UsageError(f"{model} is a name, and {given[0]} is for a module in memory", remedy)
    if own["metric"] is not None and own["samples"] is None:
        raise UsageError("metric has no samples to judge by", "give samples: real inputs, in the form of inputs")
    if task and not isinstance(model, str):
        raise UsageError("task says nothing of a module", "leave it out: it is for hf:ID")
    if allow_partial and checkpoint is None:
        raise UsageError("allow_partial says nothing without a checkpoint", "leave it out, or give a checkpoint")
    if empty := [size for size, values in options.get("sweep", {}).items() if not values]:
        raise UsageError(f"sweep names no value of {empty[0]}", "give at least one, the example's first")
    weights = options.get("weights", "auto")
    if weights not in recipes.WEIGHTS:
        raise UsageError(f"there are no weights {weights!r}", f"choose {', '.join(recipes.WEIGHTS)}")
    if checkpoint is not None and weights == "pretrained":
        raise UsageError("weights='pretrained' and checkpoint are two sources of weights", "give one of them")


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
        require_threads(threads)
    found = adjacent_records.vouch(Path(path), verify, None if public_key is None else Path(public_key))
    file = found.path
    if not found.recorded:
        contracts.require_whole(file)
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
    return first or contracts.read_zip(file)
