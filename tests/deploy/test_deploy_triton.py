"""`exporter deploy triton`: a model repository, parsed with Triton's own schema."""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from google.protobuf import text_format
from support.commands import Cli
from support.manifests import CONTRACT, variant
from tritonclient.grpc import model_config_pb2

from exporter import targets
from exporter.bundle.layout import read_manifest
from exporter.core.contract_records import Contract, TensorSpec
from exporter.core.errors import ArtifactError, BundleError, MissingDependency, UsageError
from exporter.core.json_codec import to_json
from exporter.core.size_range import Range
from exporter.deploy import MARK, Deployment, triton
from exporter.evidence import golden
from exporter.targets import _ort_level
from exporter.workers.children import Zygote

TORCHSCRIPT, AOTINDUCTOR = targets.facts("trace").triton, targets.facts("compile").triton


@pytest.fixture(autouse=True)
def _one_zygote(zygote: Zygote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "Zygote", lambda: zygote.lend())


def deploy(bundle: Path, repository: Path, name: str = "trace", **settings: Any) -> Any:
    """Deploy a variant; return the configuration as Triton's schema parses it."""
    deployment = triton.deploy(bundle, read_manifest(bundle), name, repository, **settings)
    text = (repository / deployment.model / "config.pbtxt").read_text()
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def tensors(found: Any) -> list[tuple[str, str, list[int], bool]]:
    kind = model_config_pb2.DataType.Name
    return [(t.name, kind(t.data_type), list(t.dims), t.HasField("reshape")) for t in found]


def test_torchscript_configuration(bundle: Path, tmp_path: Path) -> None:
    config = deploy(bundle, tmp_path / "models")
    place = tmp_path / "models" / "pair"
    assert (config.name, config.backend, config.platform) == ("pair", "pytorch", "pytorch_libtorch")
    assert (config.max_batch_size, config.HasField("dynamic_batching")) == (4, True)
    assert tensors(config.input) == [
        ("INPUT__0", "TYPE_INT64", [-1], False),
        ("INPUT__1", "TYPE_FP32", [-1], False),
    ]
    assert tensors(config.output) == [
        ("OUTPUT__0", "TYPE_FP32", [-1, 4], False),
        ("OUTPUT__1", "TYPE_FP32", [4], False),
        ("OUTPUT__2", "TYPE_INT64", [1], True),  # it has only the batch dimension, and Triton needs another
    ]
    assert [group.kind for group in config.instance_group] == [model_config_pb2.ModelInstanceGroup.KIND_CPU]
    assert (
        (place / "config.pbtxt")
        .read_text()
        .startswith("# INPUT__0 is ids\n# INPUT__1 is mask\n# OUTPUT__0 is hidden\n")
    )
    assert (place / "1" / "model.pt").read_bytes() == (bundle / "trace.pt").read_bytes()


def test_onnx_keeps_the_names_of_its_graph_and_its_level_of_optimizations(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_ort_level, "recorded", lambda path: "basic")
    config = deploy(bundle, tmp_path / "models", "onnx", model="other", version=7)
    assert config.optimization.graph.level == -1  # so onnxruntime's backend calls this level
    assert (config.backend, config.platform, config.name) == ("onnxruntime", "onnxruntime_onnx", "other")
    graph = onnx.load(tmp_path / "models" / "other" / "7" / "model.onnx").graph
    assert [t.name for t in config.input] == [t.name for t in graph.input]
    assert [t.name for t in config.output] == [t.name for t in graph.output]


def test_the_warm_up_is_one_row_of_the_golden(bundle: Path, tmp_path: Path) -> None:
    (sample,) = deploy(bundle, tmp_path / "models").model_warmup
    first = golden.read(bundle / "golden.safetensors").cases[0].inputs
    assert (sample.batch_size, sorted(sample.inputs)) == (1, ["INPUT__0", "INPUT__1"])
    for name, tensor, dtype in zip(("INPUT__0", "INPUT__1"), first, (np.int64, np.float32), strict=True):
        given = sample.inputs[name]
        data = np.fromfile(tmp_path / "models" / "pair" / "warmup" / given.input_data_file, dtype)
        assert np.array_equal(data.reshape(1, *given.dims), tensor[:1].numpy())


def contract(first: tuple[Any, ...] = ("batch", 4), bounds: Range | None = None, **changes: Any) -> Contract:
    settings: dict[str, Any] = {"inputs": (TensorSpec("x", "float32", first),)}
    settings["outputs"] = (TensorSpec("output", "float32", ("batch", "2*width")),)
    return replace(CONTRACT, symbols={"batch": bounds or Range(1, 8), "width": Range(1, 9)}, **settings | changes)


def gives(*dims: int | str | None) -> Contract:
    return contract(outputs=(TensorSpec("pooled", "float32", ("batch", 4)), TensorSpec("output", "float32", dims)))


@pytest.mark.parametrize(
    ("given", "batch", "dims"),
    [
        (contract(), 8, [4]),
        (contract((4, "batch")), 0, [4, -1]),  # the batch is not the first dimension
        (contract(bounds=Range(2, 8)), 0, [-1, 4]),  # Triton would send a batch of 1
        (contract(bounds=Range(1, 8, (1, 8))), 0, [-1, 4]),  # or of 3
        (contract(bounds=Range(2, 8, multiple_of=2)), 0, [-1, 4]),  # or of 3
        (contract(bounds=Range(1, 1)), 1, [4]),
        (contract(("batch", "width")), 8, [-1]),
        (gives("batch", "width"), 8, [4]),
        (gives("batch", "batch"), 0, [-1, 4]),  # every pair of rows: Triton would give each caller the columns of all
        (gives("batch", 4, "batch+width"), 0, [-1, 4]),
        (gives("batch", "(3*batch+1)//2"), 0, [-1, 4]),
        (gives("batch", None), 0, [-1, 4]),  # it may be the batch
        (contract(("batch", "batch")), 0, [-1, -1]),
    ],
)
def test_batching_needs_every_batch_size_from_one(given: Contract, batch: int, dims: list[int]) -> None:
    config = triton.configuration("toy", given, TORCHSCRIPT)
    assert (config.max_batch_size, list(config.input[0].dims)) == (batch, dims)
    assert config.HasField("dynamic_batching") == (batch > 1)


def test_a_step_is_documented_because_triton_does_not_check_it() -> None:
    given = contract(bounds=Range(16, 64, multiple_of=16))
    config = triton.configuration("toy", given, TORCHSCRIPT)
    assert "# batch is 16 to 64, multiples of 16\n" in triton._text(config, given)


def test_packages_for_gpus() -> None:
    config = triton.configuration("toy", replace(contract(), device="cuda"), AOTINDUCTOR)
    assert (config.platform, config.max_batch_size, list(config.input[0].dims)) == ("torch_aoti", 0, [-1, 4])
    assert config.instance_group[0].kind == model_config_pb2.ModelInstanceGroup.KIND_GPU


def test_types_are_in_the_schema() -> None:
    assert set(triton.TYPES.values()) <= set(model_config_pb2.DataType.keys())


@pytest.mark.parametrize(
    ("target", "changes", "words"),
    [
        ("export", {}, "no Triton backend"),
        ("trace", {"outputs": (TensorSpec("y", "complex64", (2,)),)}, "tensors of complex64"),
        ("trace", {"ops": ("torchvision", "mine")}, "operators of mine"),
        ("onnx", {"ops": ("torchvision",)}, "operators of torchvision"),
        ("compile", {"symbols": {"batch": Range(1, 8, (1, 8))}}, "an entry for each size"),
    ],
)
def test_artifacts_that_triton_cannot_serve(target: str, changes: dict[str, Any], words: str) -> None:
    assert words in triton.refuse(variant(target, contract=replace(CONTRACT, **changes)))
    assert triton.refuse(variant("trace", contract=replace(CONTRACT, ops=("torchvision",)))) == ""


def test_another_version_keeps_the_first(bundle: Path, tmp_path: Path) -> None:
    deploy(bundle, tmp_path / "models")
    deploy(bundle, tmp_path / "models", "script", version=2)
    place = tmp_path / "models" / "pair"
    assert (place / "1" / "model.pt").read_bytes() == (bundle / "trace.pt").read_bytes()
    assert (place / "2" / "model.pt").read_bytes() == (bundle / "script.pt").read_bytes()
    with pytest.raises(UsageError, match="1, 2 of pair have a different platform, backend, input, output in"):
        deploy(bundle, tmp_path / "models", "onnx", version=3)


def test_another_version_on_a_file_system_without_hard_links(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    deploy(bundle, tmp_path / "models")
    monkeypatch.setattr(os, "link", refuse)
    deploy(bundle, tmp_path / "models", "script", version=2)
    place = tmp_path / "models" / "pair"
    assert (place / "1" / "model.pt").read_bytes() == (bundle / "trace.pt").read_bytes()


def test_a_server_of_another_user_may_read_the_model_with_any_umask(bundle: Path, tmp_path: Path) -> None:
    mask = os.umask(0o077)
    try:
        deploy(bundle, tmp_path / "models")
    finally:
        os.umask(mask)
    place = tmp_path / "models" / "pair"
    found = {stat.S_IMODE(path.stat().st_mode) for path in (place, *place.rglob("*"))}
    assert found == {0o755, 0o644}


def test_an_edited_configuration_is_kept(bundle: Path, tmp_path: Path) -> None:
    deploy(bundle, tmp_path / "models")
    config = tmp_path / "models" / "pair" / "config.pbtxt"
    config.write_text(edited := config.read_text() + "# tuned\n")
    with pytest.raises(BundleError, match="was edited"):
        deploy(bundle, tmp_path / "models")
    assert config.read_text() == edited


@pytest.mark.parametrize("name", ["trace", "onnx"])
def test_an_altered_version_is_not_kept(bundle: Path, tmp_path: Path, name: str) -> None:
    """A new record would bless it. The version that is replaced may be altered."""
    deploy(bundle, tmp_path / "models", name)
    place = tmp_path / "models" / "pair"
    file = next((place / "1").iterdir())
    file.write_bytes(altered := file.read_bytes()[:-1] + b"!")
    before = (place / "deployment.json").read_bytes()
    with pytest.raises(BundleError, match=f"version 1 was altered: .*/1/{file.name} ") as raised:
        deploy(bundle, tmp_path / "models", name, version=2)
    assert f"remove {place / '1'}" in raised.value.remedy
    assert (file.read_bytes(), (place / "deployment.json").read_bytes()) == (altered, before)
    deploy(bundle, tmp_path / "models", name)
    deploy(bundle, tmp_path / "models", name, version=2)
    file.unlink()
    with pytest.raises(BundleError, match=f"version 1 was altered: .*/1/{file.name} is missing"):
        deploy(bundle, tmp_path / "models", name, version=3)
    file.parent.rmdir()
    deploy(bundle, tmp_path / "models", name, version=3)


def test_a_deployment_of_another_kind_is_not_replaced(bundle: Path, tmp_path: Path) -> None:
    place = tmp_path / "models" / "pair"
    place.mkdir(parents=True)
    (place / MARK).write_text(mark := to_json(Deployment("cpp", "pair", "trace")))
    with pytest.raises(BundleError, match="no deployment for triton"):
        deploy(bundle, tmp_path / "models")
    assert (place / MARK).read_text() == mark


@pytest.mark.parametrize("name", ["../pair", ".hidden", "a/b", "-x"])
def test_invalid_model_names_are_refused(bundle: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="not a valid name of a model folder"):
        deploy(bundle, tmp_path / "models", model=name)


def test_an_altered_golden_is_refused(bundle: Path, tmp_path: Path) -> None:
    with (bundle / "golden.safetensors").open("ab") as file:
        file.write(b"more")
    with pytest.raises(ArtifactError, match="not the recorded"):
        deploy(bundle, tmp_path / "models")


def test_without_tritonclient(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tritonclient.grpc", None)
    with pytest.raises(MissingDependency, match=r"tritonclient\[grpc\] is not installed"):
        deploy(bundle, tmp_path / "models")


def test_the_command(cli: Cli, bundle: Path, tmp_path: Path) -> None:
    done = cli("deploy", "triton", bundle, "--variant", "onnx", "--repository", tmp_path / "models", "--version", 3)
    assert (done.code, (tmp_path / "models" / "pair" / "3" / "model.onnx").is_file()) == (0, True)
    shown = re.findall(r"[(,] ?(\S+) [\d.]+ k?B(?=[,)])", done.out)
    assert "3/model.onnx" in shown
    assert all((tmp_path / "models" / "pair" / name).is_file() for name in shown), "not only a name such as 0"
