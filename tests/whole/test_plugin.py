"""A target and a recipe from another package: every command accepts them, and exporter itself does not name them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from support.commands import TESTS, Cli, start_cli

import exporter
from exporter import targets
from exporter.bundle import layout
from exporter.core import environment, source_lines
from exporter.core.errors import ArtifactError, UsageError
from exporter.release import keys
from exporter.runs import doctor, pipeline
from exporter.targets import _plugins
from exporter.workers.children import EXPORTING, Zygote

PLUGIN = TESTS / "plugin"
ENTRIES = "[exporter.targets]\nsample = sample_plugin.target\n[exporter.models]\nsample = sample_plugin.recipe\n"
REQUIRED = "artifact, variants, precisions, requires = 'NAME.bin', ('',), ('fp32',), ()\n"
REQUIRED += "native = needs_program = False\ndef export(*_): ...\nload = read_contract = export\n"

Install = Callable[..., Path]


@pytest.fixture(scope="module")
def _site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for packages. It exists before the zygote starts: Python remembers that a folder was missing."""
    return tmp_path_factory.mktemp("site")


@pytest.fixture(scope="module")
def zygote(_site: Path) -> Iterator[Zygote]:
    """A zygote whose jobs find the packages in the folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", "/tmp")  # not the folder of the first test, which is deleted
        patch.setenv("PYTHONPATH", str(_site), prepend=os.pathsep)
        patch.setenv("WARMED", str(_site.with_name("warmed")))
        made = Zygote(None, () if environment.gpus() else EXPORTING)
    with made:
        yield made


@pytest.fixture
def site(_site: Path) -> Iterator[Path]:
    """The folder, empty."""
    yield _site
    for entry in _site.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()


@pytest.fixture
def install(site: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """A function that installs a distribution for this process and its children; again, to change its version."""
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
    """The sample package, installed with the requirement of its target."""
    site = install("sample-plugin", entries=ENTRIES)
    shutil.copytree(PLUGIN / "sample_plugin", site / "sample_plugin")
    install("sample-runtime", "2.0")
    return install


def unwrapped(text: str) -> str:
    """Return terminal output as one line."""
    return " ".join(text.split())


@pytest.fixture
def fine_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let doctor find that every module imports, without importing them, which takes seconds."""
    monkeypatch.setattr(doctor, "_probe", lambda: dict.fromkeys(doctor.modules(), ("", "2.14.1")))


@pytest.mark.usefixtures("sample")
def test_every_command_accepts_the_target(
    cli: Cli, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "WARM_UP_BYTES", 0)
    bundle, budget = tmp_path / "bundle", ("--time-budget", 0.1)
    done = cli("export", "sample", "--targets", "trace,sample", "--goal", "portability", "--out", bundle, *budget)
    assert done.code == 0, done.out + done.err
    manifest = layout.read_manifest(bundle)
    rows = {variant.name: variant for variant in manifest.variants}
    assert rows["sample"].status == "passed", "although its warm-up fails"
    assert site.with_name("warmed").exists()
    assert rows["sample"].timings
    sessions = {session.session: session.status for session in rows["sample"].sessions}
    assert sessions == {"python": "passed"} | ({"native": "passed"} if environment.find_runner() else {})
    assert rows["sample"].notes == ("by the sample plug-in",)
    assert {"sample-plugin": "1.0", "sample-runtime": "2.0"}.items() <= manifest.environment.items()
    bill = {part["name"] for part in json.loads((bundle / layout.BOM).read_bytes())["components"]}
    assert {"sample-runtime", "sample-plugin", "sample.pt"} <= bill
    assert "Ship sample.pt" in unwrapped(done.out), "its rank is the most portable one"

    for name in ("check", "bench"):
        done = cli(name, bundle, *(budget if name == "bench" else ()))
        assert done.code == 0, done.out + done.err
        assert "sample" in done.out
    assert "Ship sample.pt" in unwrapped(cli("report", bundle).out)
    refused = cli("deploy", "triton", bundle, "--repository", tmp_path / "models", "--variant", "sample")
    assert refused.code == 2
    assert "no Triton backend supports" in refused.out + refused.err

    for name in ("sample.pt", "trace.pt"):
        alone = shutil.copy(bundle / name, tmp_path / f"alone-{name}")
        assert exporter.open_artifact(alone).contract.target == name.removesuffix(".pt")

    shutil.rmtree(site / "sample_plugin-1.0.dist-info")
    done = cli("check", bundle)
    assert done.code == 1
    assert "there is no target 'sample'" in done.out
    assert "1 of 2 variants passed" in done.out, "the other variants are still judged"
    assert "Ship trace.pt" in unwrapped(cli("report", bundle).out)
    with pytest.raises(ArtifactError, match="the target in its contract is unknown"):
        exporter.open_artifact(bundle / "sample.pt")


@pytest.mark.usefixtures("sample")
def test_lists_doctor_and_explain_include_the_target(cli: Cli) -> None:
    said = cli("explain", "sample").out
    assert "sample: can it be saved?" in said
    assert "it takes 1 input" in said
    assert "A sample of a recipe" in cli("models").out
    assert "A sample of a target" in cli("targets").out
    said = cli("doctor").out
    assert "target from sample-plugin 1.0" in said
    assert "needs nothing else" in said
    with pytest.raises(UsageError) as raised:
        targets.parse("specimen")
    assert raised.value.remedy == "did you mean sample?"


@pytest.mark.usefixtures("sample")
def test_doctor_reports_missing_requirements(install: Install, cli: Cli, fine_imports: None) -> None:
    shutil.rmtree(install("sample-runtime") / "sample_runtime-1.0.dist-info")
    done = cli("doctor")
    assert done.code == 1
    assert "from sample-plugin 1.0: sample-runtime is not installed" in done.out
    assert "pip install sample-runtime" in done.out


def test_a_release_rebuilds_if_a_requirement_changes(sample: Install, cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "release.toml"
    file.write_text(
        f'out = "{tmp_path / "out"}"\nbench = false\ntargets = ["trace", "sample"]\n[[models]]\nmodel = "sample"\n'
    )

    def made() -> set[str]:
        """Run the release; return the targets whose bundles it rebuilt."""
        before = times()
        keys._environment.cache_clear()  # as in a new process
        done = cli("release", file, "--resume")
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
    name = f"bad_{abs(hash((module, why)))}"  # a new module each time, because Python caches imports
    install("bad-plugin", entries=f"[exporter.targets]\nbad = {name}\n", **{name: module})
    with pytest.raises(UsageError) as raised:
        targets.parse("bad")
    assert str(raised.value).startswith(f"the target bad of bad-plugin 1.0 cannot be used: {why}")
    assert raised.value.remedy == "update or remove bad-plugin"
    assert {"trace", "onnx"} <= targets.usable().keys()
    assert "bad" not in targets.usable()
    assert targets.facts("bad") == targets.Facts()
    assert [str(error) for error in targets.refused()] == [str(raised.value)]


def test_a_broken_target_does_not_affect_others(install: Install, cli: Cli, fine_imports: None, tmp_path: Path) -> None:
    install("bad-plugin", entries="[exporter.targets]\nbad = worse\ntrace = worse\n", worse="raise RuntimeError('no')")
    process = start_cli("targets")  # in a process of its own, which loads the targets itself
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "trace.pt" in out
    assert "the target trace of bad-plugin 1.0 cannot be used: exporter has a target of that name" in err
    done = cli("doctor")
    assert "the target bad of bad-plugin 1.0 cannot be used: it fails to import: RuntimeError: no" in done.out
    done = cli("export", TESTS / "recipes/tiny.py:mlp", "--targets", "trace", "--no-bench", "--out", tmp_path / "b")
    assert done.code == 0, done.out + done.err
    assert "the target trace of bad-plugin 1.0 cannot be used" in done.out + done.err, (
        "the built-in target runs, with a warning"
    )
    done = cli("export", TESTS / "recipes/tiny.py:mlp", "--targets", "bad", "--out", tmp_path / "c")
    assert done.code == 2
    assert "update or remove bad-plugin" in done.err


def test_a_broken_recipe_names_its_distribution(install: Install, cli: Cli, tmp_path: Path) -> None:
    site = install("bad-plugin", entries="[exporter.models]\nbad = worse.recipe\n")
    (site / "worse").mkdir()
    (site / "worse/__init__.py").write_text("raise RuntimeError('no')")
    assert "BERT" in cli("models").out
    done = cli("export", "bad", "--targets", "trace", "--out", tmp_path / "b")
    assert done.code == 2
    assert "worse.recipe of bad-plugin 1.0 does not import: RuntimeError: no" in done.err
    (tmp_path / "release.toml").write_text('bench = false\ntargets = ["trace"]\n[[models]]\nmodel = "bad"\n')
    done = cli("release", tmp_path / "release.toml")
    assert done.code == 1
    assert "worse.recipe of bad-plugin 1.0 does not import" in done.out


def test_two_packages_with_the_same_target_name(install: Install) -> None:
    install("first-plugin", entries="[exporter.targets]\ntwice = twice\n", twice=REQUIRED.replace("NAME", "twice"))
    assert targets.get("twice").artifact == "twice.bin"
    install("second-plugin", entries="[exporter.targets]\ntwice = twice\n")
    with pytest.raises(UsageError, match=r"twice of (first|second)-plugin 1.0 cannot be used: (first|second)-plugin"):
        targets.get("twice")


@pytest.mark.parametrize("name", ["eager", "a:b"])
def test_reserved_names_are_refused(install: Install, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint(name, "named", _plugins.GROUP)
    install("named-plugin", named=REQUIRED)
    monkeypatch.setattr(_plugins, "entry_points", lambda group: [point])
    with pytest.raises(UsageError, match="is not a valid name for a target"):
        targets.get(name)


def test_a_targets_own_code_is_not_a_line_of_the_model(install: Install) -> None:
    site = install("lined-plugin", entries="[exporter.targets]\nlined = lined.target\n")
    (site / "lined").mkdir()
    (site / "lined/target.py").write_text(REQUIRED.replace("NAME", "lined") + "libraries = ('lined_runtime',)\n")
    targets.get("lined")
    for package in ("lined", "lined_runtime"):
        text = f'File "/usr/lib/python3.12/site-packages/{package}/x.py", line 3, in f'
        assert source_lines.place(text) == ""


def test_undeclared_facts_have_defaults(install: Install) -> None:
    install("plain-plugin", entries="[exporter.targets]\nplain = plain\n", plain=REQUIRED.replace("NAME", "plain"))
    assert targets.facts("plain") == targets.Facts()
    assert "plain.bin" in layout.artifacts()
    assert "plain-plugin" in targets.distributions(["plain"])
    assert not targets.is_portable(targets.Variant("plain"))
    assert "plain-plugin" not in environment.describe(targets.distributions())
