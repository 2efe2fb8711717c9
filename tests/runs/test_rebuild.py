"""Rebuilding a bundle, and comparing two builds."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import zipfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.commands import RECIPES, Cli, republish
from support.lending import lend
from support.manifests import manifest

from exporter import targets
from exporter.bundle import layout as bundles
from exporter.bundle.differences import Difference, _libraries, _numbers, compare, conclude, records
from exporter.bundle.signing import Trust
from exporter.core import environment
from exporter.core.errors import BundleError, UsageError
from exporter.core.json_codec import from_json, to_json
from exporter.core.progress import Listener
from exporter.core.records import Manifest, RequestRecord
from exporter.model import recipes, tensor_files
from exporter.report import rebuilt
from exporter.runs import pipeline, rebuild
from exporter.runs.request import Request, again
from exporter.workers.children import Zygote

Edit = Callable[[str, bytes], bytes]
KEYS = ["ccudhjqbvv3ztu3ohjnlkg2hukpcw5zawgn4hdtp4h7ogxmkst5l", "cnzot2nsyod6bvjye2eqrrrbytstlq43776lgm3pu5gxbev5j6ov"]


def rewrite(path: Path, edit: Edit = lambda _, data: data, date: tuple[int, ...] = (1980, 1, 1, 0, 0, 0)) -> None:
    """Rewrite an archive, with each member changed by `edit`."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name, date), edit(name, data))  # type: ignore[arg-type]


def first_number(member: str, value: float) -> Edit:
    """Return an edit that changes the first number of a member."""
    return lambda name, data: struct.pack("<f", value) + data[4:] if name.endswith(member) else data


def statuses(out: str) -> dict[str, str]:
    return {file["path"]: file["status"] for file in json.loads(out)["files"]}


@pytest.fixture(scope="module")
def own(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe, a checkpoint, and the bundle made from them. Do not change it."""
    folder = tmp_path_factory.mktemp("own")
    for name in ("tiny.py", "recipes_shared.py"):
        shutil.copy(RECIPES / name, folder / name)
    torch.manual_seed(1)
    layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    torch.save({f"layers.{name}": value for name, value in layers.state_dict().items()}, folder / "weights.pt")
    asked = f"{folder / 'tiny.py'}:mlp"
    source = replace(recipes.find(asked), checkpoint=str(folder / "weights.pt"))
    variants = tuple(targets.parse("trace"))
    request = Request("mlp", source, variants, folder / "mlp", asked=asked, bench=False, command="exporter ...")
    with pytest.MonkeyPatch.context() as patch:
        lend(zygote, patch)
        made, _ = pipeline.run(request)
    assert made.variants[0].status == "passed"
    return folder


@pytest.fixture
def copied(own: Path, tmp_path: Path) -> Path:
    """A copy of that bundle, which a test may change."""
    return Path(shutil.copytree(own / "mlp", tmp_path / "mlp"))


def test_a_rebuild_is_identical_byte_by_byte(cli: Cli, bundle: Path) -> None:
    done = cli("check", bundle, "--rebuild", "--json", "-q")
    found = statuses(done.out)
    assert done.code == 0, done.out
    artifacts = {"trace.pt", "script.pt", "model.onnx", "exported.pt2", "golden.safetensors"}
    assert {name: found[name] for name in artifacts} == dict.fromkeys(artifacts, "identical")
    proofs = {"manifest.json", "SHA256SUMS", "bom.cdx.json", "provenance.json"}
    assert {name: found[name] for name in proofs} == dict.fromkeys(proofs, "known places")
    assert found.keys() == {str(p.relative_to(bundle)) for p in bundle.rglob("*") if p.is_file()}


def test_a_bundle_that_its_recipe_does_not_build(cli: Cli, copied: Path) -> None:
    """It is republished with a different weight and golden, an extra file, and another version of torch."""
    rewrite(copied / "trace.pt", first_number("constants/0", 5.0))
    data = bytearray((copied / "golden.safetensors").read_bytes())
    data[-1] ^= 1
    (copied / "golden.safetensors").write_bytes(data)
    shutil.copy(copied / "trace.pt", copied / "script.pt")
    before = bundles.read_manifest(copied)
    record = bundles.record
    row = replace(before.variants[0], artifact=record(copied / "trace.pt"), companions=(record(copied / "script.pt"),))
    golden = before.golden and replace(before.golden, file=record(copied / "golden.safetensors"))
    then = before.environment | {"torch": "2.0"}
    republish(copied, replace(before, variants=(row,), golden=golden, environment=then))
    done = cli("check", copied, "--rebuild", "-q")
    lines = {line.split()[0]: line for line in done.out.splitlines()}
    assert done.code == 1
    assert "numbers: trace/constants/0: 1 of 32 numbers, by" in lines["trace.pt"]
    assert "numbers: " in lines["golden.safetensors"]
    assert "1 of " in lines["golden.safetensors"]
    assert "differs: the rebuild did not make it" in lines["script.pt"]
    assert lines["torch"] == f"torch was 2.0, is {before.environment['torch']}"
    assert "differs from what its recipe builds here" in done.out


@pytest.mark.parametrize("name", ["tiny.py", "weights.pt"])
def test_changed_or_missing_materials_are_refused(cli: Cli, own: Path, name: str) -> None:
    file = own / name
    before = file.read_bytes()
    role = "recipe" if name == "tiny.py" else "checkpoint"
    try:
        file.write_bytes(before + b"\n")
        changed = cli("check", own / "mlp", "--rebuild", "-q")
        file.unlink()
        gone = cli("check", own / "mlp", "--rebuild", "-q")
    finally:
        file.write_bytes(before)
    assert changed.code == gone.code == 2
    assert f"the {role} {name} has changed" in changed.err
    assert "restore the file" in changed.err
    assert name in gone.err
    assert ("check the path" if role == "recipe" else "restore the file") in gone.err


def test_weights_that_are_no_longer_available(cli: Cli, copied: Path) -> None:
    before = bundles.read_manifest(copied)
    model = replace(before.model, weights="pretrained", origin="pkg:huggingface/a/b@1")
    republish(copied, replace(before, model=model))
    done = cli("check", copied, "--rebuild", "-q")
    assert done.code == 2
    assert "the weights are checkpoint weights.pt now and were pretrained of pkg:huggingface/a/b@1" in done.err


def test_an_altered_bundle_is_not_rebuilt(cli: Cli, copied: Path) -> None:
    rewrite(copied / "trace.pt", first_number("constants/0", 5.0))
    done = cli("check", copied, "--rebuild", "-q")
    assert done.code == 1
    assert "trace.pt does not match SHA256SUMS" in done.err


def test_a_bundle_records_how_it_was_built(cli: Cli, copied: Path) -> None:
    done = cli("check", copied, "--rebuild", "--threads", 1)
    assert done.code == 2
    assert "remove the other options" in done.err


def asked(model: str, *names: str, **settings: object) -> Manifest:
    """Return a manifest that records a request."""
    return replace(
        manifest(), request=RequestRecord(model=model, targets=names or ("trace",), device="cpu", **settings)
    )


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (manifest(), "its manifest records no request"),
        (asked(""), "a module in memory"),
        (asked("nowhere/net.py:net"), "there is no file"),
        (asked("bert", "paint"), "there is no target"),
        (asked("bert", threads=0), "threads is 0"),
        (asked("bert", fullgraph=True), "--fullgraph applies only to"),
    ],
)
def test_a_recorded_request_that_cannot_be_repeated(made: Manifest, told: str) -> None:
    with pytest.raises(UsageError, match="cannot be built again") as caught:
        again(made)
    assert told in str(caught.value)
    assert caught.value.remedy


def test_the_request_survives_the_manifest(tmp_path: Path) -> None:
    """Every option that affects the bundle is restored from the manifest."""
    text = f"{RECIPES / 'tiny.py'}:pair"
    request = Request(
        "other",
        recipes.find(text),
        tuple(targets.parse("trace@bf16,compile:default,onnx")),
        tmp_path,
        sizes={"batch": 2, "sequence": 4},
        sweep={"batch": (2, 3)},
        dynamic="batch",
        weights="random",
        seed=7,
        threads=1,
        timeout=60.0,
        rtol=0.5,
        opset=20,
        fullgraph=True,
        asked=text,
        command="exporter ...",
    )
    made = replace(manifest(), command=request.command, request=request.record)
    made = from_json(Manifest, to_json(replace(made, model=replace(made.model, name="other"))))
    assert replace(again(made), out=tmp_path) == request


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_numbers_are_compared_by_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    paths = [tmp_path / side / "golden.safetensors" for side in ("old", "new")]
    for value, path in enumerate(paths):
        path.parent.mkdir()
        tensor_files.save({"a": torch.zeros(3, dtype=dtype), "b": torch.tensor([value, 0, 0, 0]).to(dtype)}, path)
    assert compare(*paths) == Difference("golden.safetensors", "numbers", "b: 1 of 4 numbers, by at most 1")
    torch.save([torch.zeros(3, dtype=dtype), torch.tensor([0, 0, 0, 1]).to(dtype)], paths[0].with_name("a.pt"))
    torch.save([torch.zeros(3, dtype=dtype), torch.tensor([0, 0, 0, 0]).to(dtype)], paths[1].with_name("a.pt"))
    old, new = (path.with_name("a.pt") for path in paths)
    assert compare(old, new) == Difference("a.pt", "numbers", "a/data/1: 1 of 4 numbers, by at most 1")


def test_different_tensors(tmp_path: Path) -> None:
    paths = [tmp_path / side / "golden.safetensors" for side in ("old", "new")]
    for path in paths:
        path.parent.mkdir()
    tensor_files.save({"a": torch.zeros(3), "b": torch.zeros(2)}, paths[0], {"schema": 3})
    tensor_files.save({"a": torch.zeros(4), "c": torch.zeros(2)}, paths[1], {"schema": 4})
    found = compare(*paths)
    assert found.status == "differs"
    assert found.detail == "the metadata; b is in only one of them; c is in only one of them; 1 more"
    paths[1].write_bytes(b"nothing of the kind")
    assert compare(*paths).status == "differs"


def onnx_pair(folder: Path, bundle: Path, edit: Callable[[Any], object]) -> Difference:
    import onnx

    model = onnx.load(bundle / "model.onnx")
    edit(model)
    onnx.save(model, folder / "model.onnx")
    return compare(bundle / "model.onnx", folder / "model.onnx")


def test_differences_between_onnx_models(made_bundle: Path, tmp_path: Path) -> None:
    import onnx

    def change_weight(model: Any) -> None:
        weight = next(w for w in model.graph.initializer if w.data_type == onnx.TensorProto.FLOAT and w.raw_data)
        weight.raw_data = struct.pack("<f", 9.0) + weight.raw_data[4:]

    found = onnx_pair(tmp_path, made_bundle, change_weight)
    assert (found.status, "numbers, by" in found.detail) == ("numbers", True)
    found = onnx_pair(tmp_path, made_bundle, lambda m: m.graph.node[0].metadata_props.add(key="at", value="/tmp/x.py"))
    assert found == Difference("model.onnx", "known places", "places in the source, for tracebacks")
    assert onnx_pair(tmp_path, made_bundle, lambda m: setattr(m.graph.node[0], "op_type", "Sub")).status == "differs"
    (tmp_path / "model.onnx").write_bytes(b"no model")
    assert compare(made_bundle / "model.onnx", tmp_path / "model.onnx").status == "differs"


def package(path: Path, key: str = KEYS[0], folder: str = "/tmp/a", **members: bytes) -> Path:
    """Write an inductor package, whose sources contain their names, paths and compiler commands."""
    path.parent.mkdir(exist_ok=True)
    place = f"{folder}/{key}.wrapper.cpp"
    code = f'// in {place}\nint f() {{ return check("fn at 0x7f{key[:4].encode().hex()}"); }}\n'
    code += f"\n// Compile cmd\n// g++ {place}\n"
    held = {"wrapper__cpp": code.encode(), "wrapper_metadata__json": b'{"AOTI_CPU_ISA": "AVX2"}'}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in (held | members).items():
            archive.writestr(zipfile.ZipInfo(f"compile/data/aotinductor/model/{key}.{name.replace('__', '.')}"), data)
        archive.writestr(zipfile.ZipInfo("compile/.data/serialization_id"), key[:40])
    return path


def packages(tmp_path: Path, **members: bytes) -> Difference:
    old = package(tmp_path / "old" / "compile.pt2")
    return compare(old, package(tmp_path / "new" / "compile.pt2", KEYS[1], "/home/b/c", **members))


def test_packages_compiled_elsewhere_differ_in_known_places(tmp_path: Path) -> None:
    found = packages(tmp_path)
    assert found.status == "known places"
    assert "generated names" in found.detail
    assert "torch's hash of the members" in found.detail


def test_packages_with_different_code_differ(tmp_path: Path) -> None:
    found = packages(tmp_path, wrapper__cpp=b"// in x\nint f() { return 1; }\n")
    assert found.status == "differs"
    assert found.detail.endswith(".wrapper.cpp, line 1")
    found = packages(tmp_path, wrapper_metadata__json=b'{"AOTI_CPU_ISA": ""}')
    assert found.status == "differs"
    found = packages(tmp_path, kernel__cubin=b"more")
    assert "is in only one of them" in found.detail


def test_packages_with_different_weights_differ(tmp_path: Path) -> None:
    package(tmp_path / "old" / "compile.pt2", wrapper_weights__blob=b"12345678")
    package(tmp_path / "new" / "compile.pt2", KEYS[1], wrapper_weights__blob=b"12345687")
    found = compare(tmp_path / "old" / "compile.pt2", tmp_path / "new" / "compile.pt2")
    assert (found.status, found.detail.endswith(": 2 of 8 bytes of weights")) == ("numbers", True)
    package(tmp_path / "new" / "compile.pt2", KEYS[1], wrapper_weights__blob=b"1234567")
    found = compare(tmp_path / "old" / "compile.pt2", tmp_path / "new" / "compile.pt2")
    assert (found.status, found.detail.endswith("had 8 bytes, has 7")) == ("differs", True)


@pytest.mark.skipif(environment.compiler() is None, reason="there is no compiler")
def test_libraries_are_compared_by_section(tmp_path: Path) -> None:
    def library(key: str, weight: float = 1.0, code: str = "x + 1", debug: str = "-g") -> bytes:
        source, made = tmp_path / f"{key}.wrapper.cpp", tmp_path / "made.so"
        source.write_text(
            f'__attribute__((section(".lrodata"))) extern const float weights[2] = {{{weight}f, 2.0f}};\n'
            f'extern "C" const char* where() {{ return __FILE__; }}\nextern "C" int f(int x) {{ return {code}; }}\n'
        )
        subprocess.run([environment.compiler() or "", debug, "-O1", "-shared", "-fPIC", source, "-o", made], check=True)
        return made.read_bytes()

    def found(new: bytes) -> Difference:
        package(tmp_path / "old" / "compile.pt2", wrapper__so=library(KEYS[0]))
        package(tmp_path / "new" / "compile.pt2", KEYS[1], wrapper__so=new)
        return compare(tmp_path / "old" / "compile.pt2", tmp_path / "new" / "compile.pt2")

    assert found(library(KEYS[1])).status == "known places"
    assert found(library(KEYS[1], debug="-g0")).status == "known places"
    other = found(library(KEYS[1], weight=3.0))
    assert (other.status, other.detail.endswith("bytes of weights")) == ("numbers", True)
    other = found(library(KEYS[1], code="x - 1"))
    assert (other.status, other.detail.endswith(".text")) == ("differs", True)
    assert found(b"no library").status == "differs"


def test_numbers_next_to_a_generated_name_are_not_a_known_place() -> None:
    old, new = struct.pack("<d", 0.1), struct.pack("<d", 0.7)
    name, other = (b"/tmp/c" + letter * 51 + b".cpp\0\0" for letter in (b"a", b"b"))
    assert _libraries._section("lib.so", ".rodata", old + name, old + other)[0] == "known places"
    assert _libraries._section("lib.so", ".rodata", old + name, new + other)[0] == "differs"
    assert _libraries._section("lib.so", ".rodata", name + old, other + new)[0] == "differs"


def test_integers_beyond_float_precision() -> None:
    one = np.array([2**53, -(2**63), 5], np.int64)
    assert _numbers.apart(one, np.array([2**53 + 1, -(2**63), 5])) == "1 of 3 numbers, by at most 1"
    assert _numbers.apart(one, np.array([2**53, 2**63 - 1, 5])) == "1 of 3 numbers, by at most 1.8e+19"
    assert _numbers.apart(np.array([np.nan, 0.0]), np.array([np.nan, -0.0])) == "signs of zeros or bit patterns of NaN"


@pytest.mark.parametrize(("compression", "at"), [(zipfile.ZIP_DEFLATED, 0), (zipfile.ZIP_LZMA, 4)])
def test_an_archive_member_that_cannot_be_unpacked(tmp_path: Path, compression: int, at: int) -> None:
    """Its compressed data is damaged in one archive; `at` is the offset of the byte that describes the compression."""
    paths = tmp_path / "old.pt2", tmp_path / "new.pt2"
    for path in paths:
        with zipfile.ZipFile(path, "w", compression) as archive:
            archive.writestr("model/code.py", "x = 1\n" * 100)
    data = bytearray(paths[0].read_bytes())
    data[30 + len("model/code.py") + at] = 0xFF  # relative to the start of the compressed data
    paths[0].write_bytes(data)
    found = compare(*paths)
    assert found.status == "differs"
    assert found.detail.startswith("it cannot be read")


def test_files_left_by_a_killed_signing_are_ignored(made_bundle: Path, tmp_path: Path) -> None:
    old, new = (Path(shutil.copytree(made_bundle, tmp_path / name)) for name in ("old", "new"))
    (old / "provenance.dsse.json.new").write_text("{")
    (old / "SHA256SUMS.new").write_text("")
    made = bundles.read_manifest(new)
    assert {file.path for file in rebuild._compared(old, new, made, made)} == {
        path.relative_to(new).as_posix() for path in new.rglob("*") if path.is_file()
    }


def test_control_characters_in_names_are_replaced() -> None:
    found = rebuild.Rebuilt("b", (Difference("a.pt", "differs", "\x1b]0;title\x07 is in only one of them"),))
    assert "a.pt  differs: \ufffd]0;title\ufffd is in only one" in rebuilt.render(found, as_json=False)


def test_an_interrupted_rebuild_does_not_mention_deleted_files(
    made_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Path(shutil.copytree(made_bundle, tmp_path / "pair"))

    def interrupted(*_: object) -> None:
        error = KeyboardInterrupt()
        error.add_note("finished variants are in /tmp")
        raise error

    def full(*_: object) -> None:
        raise BundleError("cannot write to /tmp/x: the disk is full", "give another --out")

    monkeypatch.setattr(rebuild, "pipeline", SimpleNamespace(run=interrupted))
    with pytest.raises(KeyboardInterrupt) as caught:
        rebuild.run(place, Trust(), again, lambda: nullcontext(Listener()))
    assert caught.value.__notes__ == []
    monkeypatch.setattr(rebuild, "pipeline", SimpleNamespace(run=full))
    with pytest.raises(BundleError, match="the disk is full") as refused:
        rebuild.run(place, Trust(), again, lambda: nullcontext(Listener()))
    assert "TMPDIR" in refused.value.remedy


def test_differences_between_manifests() -> None:
    old = {"at": 1, "rows": [{"name": "a", "max_abs": 0.5}], "took_s": 1.0}
    assert list(records(old, old, ())) == []
    assert list(records(old, old | {"took_s": 2.0}, ("took_s",))) == [("known places", "took_s")]
    assert [*records(old, old | {"rows": [{"name": "a", "max_abs": 0.25}]}, ())] == [
        ("numbers", "rows[0].max_abs was 0.5, is 0.25")
    ]
    assert conclude("a", records(old, old | {"rows": []}, ())).status == "differs"


def test_the_worst_difference_is_reported() -> None:
    findings = [("known places", "times"), *(("differs", f"member {n}") for n in range(5))]
    told = conclude("a", findings)  # type: ignore[arg-type]
    assert told == Difference("a", "differs", "member 0; member 1; member 2; 2 more")
    assert conclude("a", []).status == "known places"


def test_machine_load_is_a_known_place() -> None:
    found = conclude("manifest.json", records({"machine": {"cpus": 2}}, {"machine": None}, rebuild.MEASURED))
    assert found.status == "known places"
    assert conclude("manifest.json", records({"x": 1}, {"x": None}, rebuild.MEASURED)).status == "differs"
