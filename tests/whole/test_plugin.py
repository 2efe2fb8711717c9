"""A target and a recipe of another package: every command knows them, and no file of exporter names them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from support.commands import TESTS, Done, start_cli

import exporter
from exporter import targets
from exporter.bundle import layout
from exporter.core import environment, source_lines
from exporter.core.errors import ArtifactError, UsageError
from exporter.targets import _plugins

PLUGIN = TESTS / "plugin"
ENTRIES = "[exporter.targets]\nsample = sample_plugin.target\n[exporter.models]\nsample = sample_plugin.recipe\n"
REQUIRED = "artifact, variants, precisions, requires = 'NAME.bin', ('',), ('fp32',), ()\n"
REQUIRED += "native = needs_program = False\ndef export(*_): ...\nload = read_contract = export\n"

Install = Callable[..., Path]
Command = Callable[..., Done]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install a distribution for this process and those that it starts; a second time, another version of it."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", f"{site}{os.pathsep}{os.environ['PYTHONPATH']}")

    def act(name: str, version: str = "1.0", entries: str = "", **modules: str) -> Path:
        for old in site.glob(f"{name.replace('-', '_')}-*.dist-info"):
            shutil.rmtree(old)
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(entries)
        for module, text in modules.items():
            (site / f"{module}.py").write_text(text)
        return site

    return act


@pytest.fixture
def sample(install: Install) -> Install:
    """The sample package and what its target requires."""
    site = install("sample-plugin", entries=ENTRIES)
    shutil.copytree(PLUGIN / "sample_plugin", site / "sample_plugin")
    install("sample-runtime", "2.0")
    return install


def unwrapped(text: str) -> str:
    """What a terminal shows, in one line."""
    return " ".join(text.split())


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """Run exporter in a process of its own: `command("doctor")`."""

    def act(*words: object) -> Done:
        process = start_cli(*words, cwd=tmp_path)
        out, err = process.communicate(timeout=600)
        return Done(process.returncode, out, err)

    return act


@pytest.mark.usefixtures("sample")
def test_every_command_knows_the_target(command: Command, tmp_path: Path) -> None:
    bundle, budget = tmp_path / "bundle", ("--time-budget", 0.1)
    done = command("export", "sample", "--targets", "trace,sample", "--goal", "portability", "--out", bundle, *budget)
    assert done.code == 0, done.out + done.err
    manifest = layout.read_manifest(bundle)
    rows = {variant.name: variant for variant in manifest.variants}
    assert rows["sample"].status == "passed"
    assert rows["sample"].timings
    sessions = {session.session: session.status for session in rows["sample"].sessions}
    assert sessions == {"python": "passed"} | ({"native": "passed"} if environment.find_runner() else {})
    assert rows["sample"].notes == ("by the sample plug-in",)
    assert {"sample-plugin": "1.0", "sample-runtime": "2.0"}.items() <= manifest.environment.items()
    bill = {part["name"] for part in json.loads((bundle / layout.BOM).read_bytes())["components"]}
    assert {"sample-runtime", "sample-plugin", "sample.pt"} <= bill
    assert "Ship sample.pt" in unwrapped(done.out), "its rank is that of the most portable"

    for name in ("check", "bench"):
        done = command(name, bundle, *(budget if name == "bench" else ()))
        assert done.code == 0, done.out + done.err
        assert "sample" in done.out
    assert "Ship sample.pt" in unwrapped(command("report", bundle).out)
    refused = command("deploy", "triton", bundle, "--repository", tmp_path / "models", "--variant", "sample")
    assert refused.code == 2
    assert "no Triton backend supports" in refused.out + refused.err

    for name in ("sample.pt", "trace.pt"):
        alone = shutil.copy(bundle / name, tmp_path / f"alone-{name}")
        assert exporter.open_artifact(alone).contract.target == name.removesuffix(".pt")

    shutil.rmtree(tmp_path / "site" / "sample_plugin-1.0.dist-info")
    done = command("check", bundle)
    assert done.code == 1
    assert "there is no target 'sample'" in done.out
    assert "1 of 2 variants passed" in done.out, "the others are judged without the package"
    assert "Ship trace.pt" in unwrapped(command("report", bundle).out)
    with pytest.raises(ArtifactError, match="the target in its contract is unknown"):
        exporter.open_artifact(bundle / "sample.pt")


@pytest.mark.usefixtures("sample")
def test_lists_the_doctor_and_explain_name_it(command: Command) -> None:
    said = command("explain", "sample").out
    assert "the sample: what does it say?" in said
    assert "it takes 1 input" in said
    assert "A sample of a recipe" in command("models").out
    assert "A sample of a target" in command("targets").out
    said = command("doctor").out
    assert "target from sample-plugin 1.0" in said
    assert "needs nothing else" in said
    with pytest.raises(UsageError) as raised:
        targets.parse("specimen")
    assert raised.value.remedy == "did you mean sample?"


@pytest.mark.usefixtures("sample")
def test_the_doctor_says_what_it_lacks(install: Install, command: Command) -> None:
    shutil.rmtree(install("sample-runtime") / "sample_runtime-1.0.dist-info")
    done = command("doctor")
    assert done.code == 1
    assert "of sample-plugin 1.0: sample-runtime is not installed" in done.out
    assert "pip install sample-runtime" in done.out


def test_a_release_follows_what_the_target_requires(sample: Install, command: Command, tmp_path: Path) -> None:
    file = tmp_path / "release.toml"
    file.write_text(
        f'out = "{tmp_path / "out"}"\nbench = false\ntargets = ["trace", "sample"]\n[[models]]\nmodel = "sample"\n'
    )

    def made() -> set[str]:
        """Targets whose bundles the release makes anew."""
        before = times()
        done = command("release", file, "--resume")
        assert done.code == 0, done.out + done.err
        return {target for target, time in times().items() if time != before.get(target)}

    def times() -> dict[str, int]:
        found = (tmp_path / "out").rglob(layout.MANIFEST)
        return {json.loads(path.read_bytes())["variants"][-1]["target"]: path.stat().st_mtime_ns for path in found}

    assert made() == {"trace", "sample"}
    assert made() == set()
    sample("sample-runtime", "2.1")
    assert made() == {"sample"}
    sample("sample-plugin", "1.1", ENTRIES)
    assert made() == {"sample"}


@pytest.mark.parametrize(
    ("module", "why"),
    [
        ("raise RuntimeError('no such chip')", "it fails to import: RuntimeError: no such chip"),
        ("raise SystemExit(3)", "it fails to import: SystemExit: 3"),
        ("artifact = 'bad.bin'", "it lacks variants, precisions, requires, native, needs_program, export, load, read"),
        (REQUIRED + "requires = 'torch'", "requires is str, not tuple"),
        (REQUIRED + "portable = 'yes'", "portable is str, not bool"),
        (REQUIRED + "variants = (1,)", "variants may contain only str"),
        (REQUIRED + "precisions = ('fp8',)", "precisions has 'fp8', which exporter does not know"),
        (REQUIRED + "precisions = 8", "precisions is int, not tuple"),
        (REQUIRED + "load = 'me'", "load is not a function"),
        (REQUIRED + "artifact = '../x'", "'../x' is not a file name with a suffix"),
        (REQUIRED + "artifact = 'trace.pt'", "trace.pt is the artifact of another target"),
    ],
)
def test_a_broken_target_names_its_distribution(install: Install, module: str, why: str) -> None:
    name = f"bad_{abs(hash((module, why)))}"  # a module of its own, for Python keeps those that it has imported
    install("bad-plugin", entries=f"[exporter.targets]\nbad = {name}\n", **{name: module})
    with pytest.raises(UsageError) as raised:
        targets.parse("bad")
    assert str(raised.value).startswith(f"the target bad of bad-plugin 1.0 cannot be used: {why}")
    assert raised.value.remedy == "update or remove bad-plugin"
    assert {"trace", "onnx"} <= targets.usable().keys()
    assert "bad" not in targets.usable()
    assert targets.facts("bad") == targets.Facts()
    assert [str(error) for error in targets.refused()] == [str(raised.value)]


def test_a_broken_target_breaks_no_other(install: Install, command: Command, tmp_path: Path) -> None:
    install("bad-plugin", entries="[exporter.targets]\nbad = worse\ntrace = worse\n", worse="raise RuntimeError('no')")
    done = command("targets")
    assert done.code == 0
    assert "trace.pt" in done.out
    assert "the target trace of bad-plugin 1.0 cannot be used: exporter has a target of that name" in done.err
    done = command("doctor")
    assert "the target bad of bad-plugin 1.0 cannot be used: it fails to import: RuntimeError: no" in done.out
    done = command("export", TESTS / "recipes/tiny.py:mlp", "--targets", "trace", "--no-bench", "--out", tmp_path / "b")
    assert done.code == 0, done.out + done.err
    assert "the target trace of bad-plugin 1.0 cannot be used" in done.out + done.err, "it is not the one that ran"
    done = command("export", TESTS / "recipes/tiny.py:mlp", "--targets", "bad", "--out", tmp_path / "c")
    assert done.code == 2
    assert "update or remove bad-plugin" in done.err


def test_a_broken_recipe_names_its_distribution(install: Install, command: Command, tmp_path: Path) -> None:
    site = install("bad-plugin", entries="[exporter.models]\nbad = worse.recipe\n")
    (site / "worse").mkdir()
    (site / "worse/__init__.py").write_text("raise RuntimeError('no')")
    assert "BERT" in command("models").out
    done = command("export", "bad", "--targets", "trace", "--out", tmp_path / "b")
    assert done.code == 2
    assert "worse.recipe of bad-plugin 1.0 does not import: RuntimeError: no" in done.err
    (tmp_path / "release.toml").write_text('bench = false\ntargets = ["trace"]\n[[models]]\nmodel = "bad"\n')
    done = command("release", tmp_path / "release.toml")
    assert done.code == 1
    assert "worse.recipe of bad-plugin 1.0 does not import" in done.out


def test_two_packages_with_a_target_of_one_name(install: Install) -> None:
    install("first-plugin", entries="[exporter.targets]\ntwice = twice\n", twice=REQUIRED.replace("NAME", "twice"))
    assert targets.get("twice").artifact == "twice.bin"
    install("second-plugin", entries="[exporter.targets]\ntwice = twice\n")
    with pytest.raises(UsageError, match=r"twice of (first|second)-plugin 1.0 cannot be used: (first|second)-plugin"):
        targets.get("twice")


@pytest.mark.parametrize("name", ["eager", "a:b"])
def test_names_that_mean_something_else(install: Install, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint(name, "named", _plugins.GROUP)
    install("named-plugin", named=REQUIRED)
    monkeypatch.setattr(_plugins, "entry_points", lambda group: [point])
    with pytest.raises(UsageError, match="is not a valid name for a target"):
        targets.get(name)


def test_its_own_code_is_no_line_of_the_model(install: Install) -> None:
    site = install("lined-plugin", entries="[exporter.targets]\nlined = lined.target\n")
    (site / "lined").mkdir()
    (site / "lined/target.py").write_text(REQUIRED.replace("NAME", "lined") + "libraries = ('lined_runtime',)\n")
    targets.get("lined")
    for package in ("lined", "lined_runtime"):
        text = f'File "/usr/lib/python3.12/site-packages/{package}/x.py", line 3, in f'
        assert source_lines.place(text) == ""


def test_what_it_does_not_say_has_a_default(install: Install) -> None:
    install("plain-plugin", entries="[exporter.targets]\nplain = plain\n", plain=REQUIRED.replace("NAME", "plain"))
    assert targets.facts("plain") == targets.Facts()
    assert "plain.bin" in layout.artifacts()
    assert "plain-plugin" in targets.distributions(["plain"])
    assert not targets.is_portable(targets.Variant("plain"))
    assert "plain-plugin" not in environment.describe(targets.distributions())
