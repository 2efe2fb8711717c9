"""`exporter deploy cpp`: a self-contained folder."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from support import goldens
from support.commands import NATIVE, Cli
from support.manifests import CONTRACT, failed, manifest, variant

from exporter import deploy
from exporter.bundle import layout
from exporter.bundle.layout import read_manifest
from exporter.core import environment, filesystem
from exporter.core.errors import ArtifactError, BundleError, JobError, UsageError
from exporter.core.timing_records import MachineLoad
from exporter.deploy import choose, cpp
from exporter.evidence import golden
from exporter.report import summary

needs_runner = pytest.mark.skipif(not NATIVE, reason="exporter-run is not built (make cpp)")


@pytest.fixture(scope="module")
def folder(made_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A deployment of the tiny bundle's trace. Do not change it."""
    out = tmp_path_factory.mktemp("deployed") / "pair"
    deployment = cpp.deploy(made_bundle, read_manifest(made_bundle), "trace", out)
    assert deployment.parity is not None
    assert deployment.parity.verdict == "exact"
    return out


@needs_runner
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may chroot")
def test_it_verifies_in_an_empty_root(folder: Path) -> None:
    """The root has nothing else: no shell, no /lib64, no /proc, no Python."""
    command = next(line.split() for line in (folder / "README").read_text().splitlines() if " verify /" in line)
    done = subprocess.run(["chroot", folder, *command], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "/trace.pt: exact (12 cases, 0 failed)")
    assert not [file for file in folder.rglob("*") if "python" in file.name]


@needs_runner
def test_the_script_runs_from_any_directory(folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "a link"
    link.symlink_to(folder / "run")
    words = [link, "verify", folder / "trace.pt"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, cwd=tmp_path, env={}, check=False)
    assert (done.returncode, "exact (12 cases, 0 failed)" in done.stdout) == (0, True)


@needs_runner
def test_a_deployment_is_replaced_unless_it_has_other_files(folder: Path, bundle: Path, tmp_path: Path) -> None:
    out = tmp_path / "pair-cpp"
    shutil.copytree(folder, out, copy_function=os.link)
    cpp.deploy(bundle, read_manifest(bundle), "script", out)
    assert {file.name for file in (*out.glob("*.pt"), *out.glob("golden.*"))} == {"script.pt", "golden.safetensors"}
    (out / "lib" / "mine.txt").write_text("mine")
    with pytest.raises(BundleError, match=r"lib/mine\.txt, which exporter did not write"):
        cpp.deploy(bundle, read_manifest(bundle), "trace", out)
    assert (out / "lib" / "mine.txt").read_text() == "mine"


def test_a_golden_of_an_earlier_release_is_converted(bundle: Path, tmp_path: Path) -> None:
    goldens.pickled(golden.read(bundle / layout.GOLDEN), bundle / layout.PICKLED_GOLDEN)
    cpp._take_golden(bundle, layout.record(bundle / layout.PICKLED_GOLDEN), tmp_path / layout.GOLDEN)
    assert (tmp_path / layout.GOLDEN).read_bytes() == (bundle / layout.GOLDEN).read_bytes()


def test_a_folder_with_other_files_is_refused(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="holds files, but no deployment"):
        cpp.deploy(bundle, read_manifest(bundle), "trace", bundle)


def test_a_mount_point_is_refused_before_anything_is_deployed(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pair-cpp").mkdir()
    (tmp_path / "mountinfo").write_text(f"23 1 8:1 /out {tmp_path / 'pair-cpp'} rw - ext4 /dev/sda1 rw\n")
    monkeypatch.setattr(filesystem, "MOUNTS", tmp_path / "mountinfo")
    monkeypatch.setattr(cpp, "fill", None)
    with pytest.raises(BundleError, match="pair-cpp is a mount point"):
        cpp.deploy(bundle, read_manifest(bundle), "trace", tmp_path / "pair-cpp")


def test_a_deployment_through_a_link_replaces_the_files_behind_it(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    link.symlink_to(real)
    for mark in ("one", "two"):
        with deploy.staged(link, "cpp") as root:
            (root / "trace.pt").write_text(mark)
            deploy.publish(root, link, deploy.Deployment("cpp", "pair", "trace"))
        assert (link.readlink(), (real / "trace.pt").read_text()) == (real, mark)
    (real / "mine.txt").touch()
    with pytest.raises(BundleError, match=r"mine\.txt, which exporter did not write"), deploy.staged(link, "cpp"):
        pass


@pytest.mark.parametrize("file", ["trace.pt", "golden.safetensors"])
def test_altered_files_are_refused(bundle: Path, tmp_path: Path, file: str) -> None:
    data = bytearray((bundle / file).read_bytes())
    data[-1] ^= 1
    (bundle / file).write_bytes(data)
    with pytest.raises(ArtifactError, match=f"{file} does not match its record"):
        cpp.deploy(bundle, read_manifest(bundle), "trace", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@needs_runner
def test_a_missing_library_is_detected(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = environment.find_runner()
    assert runner is not None
    short = {name: path for name, path in cpp.loaded_by(runner).items() if name != "libm.so.6"}
    monkeypatch.setattr(cpp, "loaded_by", lambda *_: short)
    with pytest.raises(JobError, match=r"is not self-contained: it also loads /\S*/libm"):
        cpp.deploy(bundle, read_manifest(bundle), "trace", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def refuse_onnx(record: object) -> str:
    return "does not run in C++" if getattr(record, "target", "") == "onnx" else ""


def test_the_choice_of_variant() -> None:
    """Choose the named variant, or the only one that can be deployed, or the recommended one of several."""
    onnx, slow, fast = variant("onnx", 1.0), variant("trace", 5.0), variant("script", 4.0)
    assert choose(manifest(onnx, slow, fast), None, refuse_onnx).name == "script"
    assert choose(manifest(onnx, slow, fast), "trace", refuse_onnx).name == "trace"
    assert choose(manifest(onnx, variant("trace", None)), None, refuse_onnx).name == "trace"
    with pytest.raises(UsageError, match="there are no timings"):
        choose(manifest(variant("trace", None), variant("script", None)), None, refuse_onnx)


def test_no_variant_is_chosen_by_a_disturbed_timing() -> None:
    busy = MachineLoad(cpus=2, others=0.6, steal=0.0, throttled=0.0, hot=0, load=3.0)
    found = replace(manifest(variant("onnx", 1.0), variant("trace", 5.0), variant("script", 4.0)), machine=busy)
    assert summary.recommended(found) is None
    with pytest.raises(UsageError, match="is inconclusive") as raised:
        choose(found, None, refuse_onnx)
    assert raised.value.remedy.startswith("give --variant trace or script; or time again: `exporter bench ")
    assert choose(found, "trace", refuse_onnx).name == "trace"
    only = replace(found, variants=found.variants[:2])
    assert choose(only, None, refuse_onnx).name == "trace"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("script", "script failed: TorchScript has no cond"),
        ("onnx", r"onnx does not run in C\+\+"),
        ("compile", "no variant 'compile'"),
        ("compile:default", "leaves no artifact"),
        (None, "no artifact can be deployed here: script failed"),
    ],
)
def test_variants_that_are_refused(name: str | None, words: str) -> None:
    live = variant("compile:default", artifact=None)
    with pytest.raises(UsageError, match=words):
        choose(manifest(failed(), variant("onnx"), live), name, refuse_onnx)


def test_artifacts_that_exporter_run_cannot_run_on_a_cpu() -> None:
    assert cpp.refuse(variant()) == ""
    assert "C++" in cpp.refuse(variant("onnx"))
    assert "GPU" in cpp.refuse(variant(contract=replace(CONTRACT, device="cuda")))


def test_operators_need_their_library(bundle: Path, tmp_path: Path) -> None:
    found = read_manifest(bundle)
    calling = tuple(replace(v, contract=replace(CONTRACT, ops=("mine",))) for v in found.variants if v.name == "trace")
    with pytest.raises(UsageError, match="calls operators of mine"):
        cpp.deploy(bundle, replace(found, variants=calling), None, tmp_path / "out")


@needs_runner
def test_the_command_describes_the_deployment(cli: Cli, bundle: Path, tmp_path: Path) -> None:
    done = cli("deploy", "cpp", bundle, "--variant", "trace", "--out", tmp_path / "out")
    assert done.code == 0
    assert "Checked there: exact, 12 cases." in done.out
    assert "libtorch_cpu.so" in done.out
    assert cli("deploy", "cpp", bundle, "--out", tmp_path / "out").code == 2  # nothing was timed
