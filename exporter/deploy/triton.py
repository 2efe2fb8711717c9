"""Deploy a model to a Triton model repository: MODEL/config.pbtxt, MODEL/VERSION/model.* and a warm-up from the golden.

The configuration is Triton's own protobuf message, from tritonclient (model_config.proto). Sources for what the
backends support are their READMEs and Triton's user guide:

- triton-inference-server/pytorch_backend: the platform of TorchScript is `pytorch_libtorch`, that of AOTInductor
  packages `torch_aoti`, which is a beta without batching, from release 26.03 on. Neither knows the names of tensors.
  They are called INPUT__0 and OUTPUT__0, for packages from 26.05 on.
- triton-inference-server/onnxruntime_backend: tensors have the names of the graph. Files beside model.onnx are found.
- docs/user_guide/model_configuration.md: with max_batch_size, every shape omits the first dimension. A shape that is
  then empty is written as `dims: [1]` with an empty `reshape`.
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from exporter import targets
from exporter.bundle import layout
from exporter.core import filesystem
from exporter.core.contract import keeps_state, output_names
from exporter.core.contract_records import Contract, Dim
from exporter.core.errors import ArtifactError, BundleError, MissingDependency, UsageError
from exporter.core.expressions import Expression
from exporter.core.records import Manifest, VariantRecord
from exporter.deploy import Deployment, choose, golden, publish, read, staged, take
from exporter.targets import _ort_level
from exporter.workers.children import Zygote

KIND = "triton"
CONFIG = "config.pbtxt"
WARMUP = "warmup"  # the folder in which Triton looks for warm-up data
WARM_UPS = 3  # TorchScript specializes its code during the first runs
TIMEOUT_S = 600.0
BATCH = "batch"
TYPES = {
    "bool": "TYPE_BOOL",
    "uint8": "TYPE_UINT8",
    "int8": "TYPE_INT8",
    "int16": "TYPE_INT16",
    "int32": "TYPE_INT32",
    "int64": "TYPE_INT64",
    "float16": "TYPE_FP16",
    "float32": "TYPE_FP32",
    "float64": "TYPE_FP64",
}  # the types of Triton that both backends support


# Triton's numbers for levels of onnxruntime's graph optimizations; 0 is the highest.
LEVELS = {"extended": 1, "basic": -1, "none": 2}


def refuse(variant: VariantRecord) -> str:
    """Return why Triton cannot serve the variant, or ""."""
    backend, contract = targets.facts(variant.target).triton, variant.contract
    if backend is None or contract is None:
        return "is of a kind that no Triton backend supports"
    if keeps_state(contract):
        return "carries state from call to call, which all clients would share (export with --state inputs)"
    lacking = sorted({spec.dtype for spec in (*contract.inputs, *contract.outputs)} - TYPES.keys())
    if lacking:
        return f"has tensors of {', '.join(lacking)}, unsupported by Triton's backends"
    if missing := sorted(set(contract.ops) - set(backend.operators)):
        return f"calls operators of {', '.join(missing)}, which Triton does not register"
    if not backend.entries and any(bounds.choices for bounds in contract.symbols.values()):
        return "has an entry for each size, which Triton does not support"
    return ""


def deploy(
    place: Path, manifest: Manifest, name: str | None, repository: Path, model: str | None = None, version: int = 1
) -> Deployment:
    """Add an artifact of the bundle to a repository as a version of a model, and keep the model's other versions.

    Raises UsageError if no variant fits, if the model's name is invalid or if its other versions have a different
    configuration, ArtifactError if a file was altered, BundleError if the configuration was edited, and
    MissingDependency without tritonclient.
    """
    variant = choose(manifest, name, refuse)
    model = model or manifest.model.name
    if not re.fullmatch(r"\w[\w.-]*", model):
        raise UsageError(f"{model!r} is not a valid name of a model folder", "choose another --name")
    out, backend = repository / model, targets.facts(variant.target).triton
    assert backend is not None
    assert variant.contract is not None
    assert variant.artifact is not None
    config = configuration(model, variant.contract, backend)
    if level := LEVELS.get(_ort_level.recorded(place / variant.artifact.path) if backend.name == "onnxruntime" else ""):
        config.optimization.graph.level = level
    with staged(out, KIND) as root:
        for file in variant.files:
            main = file == variant.artifact
            take(place, file, root / str(version) / (backend.file if main else file.path))
        _keep_others(out, root, version, config)
        recorded = golden(place, manifest)
        layout.verify(place, recorded)
        _warm_up(config, root / WARMUP, place / recorded.path)
        (root / CONFIG).write_text(_text(config, variant.contract), encoding="utf-8")
        return publish(root, out, Deployment(KIND, model, variant.name))


def configuration(model: str, contract: Contract, backend: targets.TritonBackend) -> Any:
    """Return Triton's ModelConfig: names, types and shapes from the contract, and batching if `max_batch` allows it."""
    proto = _proto()
    batch = max_batch(contract) if backend.batches else 0
    made = proto.ModelConfig(name=model, backend=backend.name, platform=backend.platform, max_batch_size=batch)
    for kind, tensors, specs in (("INPUT", made.input, contract.inputs), ("OUTPUT", made.output, contract.outputs)):
        names = output_names(contract) if kind == "OUTPUT" else [spec.name for spec in specs]
        for index, spec in enumerate(specs):
            dims = [dim if isinstance(dim, int) else -1 for dim in spec.shape[bool(batch) :]]
            tensor = tensors.add(
                name=names[index] if backend.named else f"{kind}__{index}",
                data_type=proto.DataType.Value(TYPES[spec.dtype]),
                dims=dims or [1],
            )
            if not dims:
                tensor.reshape.SetInParent()
    if batch > 1:
        made.dynamic_batching.SetInParent()
    kind = proto.ModelInstanceGroup.KIND_GPU if contract.device == "cuda" else proto.ModelInstanceGroup.KIND_CPU
    made.instance_group.add(kind=kind, count=1)
    return made


def max_batch(contract: Contract) -> int:
    """Return the largest batch that Triton may form, or 0 without batching.

    Batching requires `batch` as the first dimension of every tensor and in no other, and every size from 1 to its
    maximum.
    """
    bounds = contract.symbols.get(BATCH)
    shapes = {spec.shape for spec in (*contract.inputs, *contract.outputs)}
    if {shape[:1] for shape in shapes} != {(BATCH,)} or any(
        _may_be_batch(dim) for shape in shapes for dim in shape[1:]
    ):
        return 0
    every = bounds is not None and bounds.min == bounds.multiple_of == 1 and not bounds.choices
    return bounds.max if bounds and every else 0


def _may_be_batch(dim: Dim) -> bool:
    """Return whether a dimension depends on the batch, as in a matrix of similarities, or may do so."""
    return dim is None or (isinstance(dim, str) and BATCH in Expression.parse(dim).names)


def _warm_up(config: Any, folder: Path, golden_file: Path) -> None:
    """Add a warm-up sample from the inputs of the golden's first case, with one row if the model has batches."""
    arguments = {"golden_path": str(golden_file), "folder": str(folder), "one_row": config.max_batch_size > 0}
    with Zygote() as zygote, tempfile.TemporaryDirectory(prefix="exporter-") as logs:
        shapes = zygote.run("warm-up", "exporter.deploy.child:warm_up", arguments, Path(logs) / "log", TIMEOUT_S)
    sample = config.model_warmup.add(name="golden", batch_size=1, count=WARM_UPS)
    for index, (tensor, shape) in enumerate(zip(config.input, shapes, strict=True)):
        given = sample.inputs[tensor.name]
        given.data_type = tensor.data_type
        given.dims.extend(shape or [1])
        given.input_data_file = str(index)


def _keep_others(out: Path, root: Path, version: int, config: Any) -> None:
    """Link or copy the model's other versions.

    Raises UsageError if their configuration differs from this version's, and BundleError if a file was altered.
    """
    deployment = read(out)
    if deployment is None:
        return
    try:
        for written in (file for file in deployment.files if file.path == CONFIG):
            layout.verify(out, written)
    except ArtifactError:
        raise BundleError(f"{out / CONFIG} was edited", "move the model away, or choose another --name") from None
    others = [path for path in out.iterdir() if path.name.isdigit() and path.name != str(version)]
    if others and (differing := _differing(config, (out / CONFIG).read_text(encoding="utf-8"))):
        raise UsageError(
            f"versions {', '.join(sorted(path.name for path in others))} of {out.name} have a different {differing} in "
            f"{CONFIG}, which all versions share",
            "choose another --name, or remove them",
        )
    for other in others:
        for file in (file for file in deployment.files if Path(file.path).parent.name == other.name):
            try:
                layout.verify(other, replace(file, path=Path(file.path).name))
            except ArtifactError as error:
                raise BundleError(
                    f"version {other.name} was altered: {error}",
                    f"remove {other}, move the model away, or choose another --name",
                ) from error
        filesystem.link_tree(other, root / other.name)


def _differing(config: Any, text: str) -> str:
    """Return the names of the fields of a configuration that differ from the text."""
    from google.protobuf import text_format

    before = text_format.Parse(text, _proto().ModelConfig())
    before.ClearField("model_warmup")  # `config` has none yet
    names = (field.name for field in config.DESCRIPTOR.fields)
    return ", ".join(name for name in names if getattr(before, name) != getattr(config, name))


def _text(config: Any, contract: Contract) -> str:
    """Return config.pbtxt, with comments for the contract's tensor names and the steps that Triton does not check."""
    from google.protobuf import text_format

    pairs = zip((*config.input, *config.output), (*contract.inputs, *contract.outputs), strict=True)
    names = [f"# {tensor.name} is {spec.name}\n" for tensor, spec in pairs if tensor.name != spec.name]
    names += [f"# {name} is {bounds}\n" for name, bounds in contract.symbols.items() if bounds.multiple_of > 1]
    return "".join(names) + str(text_format.MessageToString(config))


def _proto() -> Any:
    """Import Triton's messages. Raises MissingDependency if they are not installed."""
    try:
        from tritonclient.grpc import model_config_pb2
    except (ImportError, RuntimeError) as error:  # RuntimeError: tritonclient without its extra
        raise MissingDependency("tritonclient[grpc] is not installed", "pip install 'tritonclient[grpc]'") from error
    return model_config_pb2
