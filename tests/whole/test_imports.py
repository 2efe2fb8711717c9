"""Light imports: the parent of a run never imports torch, and help appears at once."""

from __future__ import annotations

import configparser
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "onnx", "onnxruntime", "onnxscript", "transformers", "torchvision", "matplotlib", "jinja2"}
HELP = """
import sys, json
sys.argv = ["exporter", *{words!r}]
from exporter.cli import main
try:
    main()
except SystemExit as done:
    print(json.dumps([done.code, sorted(sys.modules)]), file=sys.stderr)
"""


def modules_after(code: str) -> set[str]:
    script = f"{code}\nimport sys, json\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_every_package_is_installed() -> None:
    """An editable installation would hide a package that setup.cfg lacks."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    found = {".".join(file.parent.relative_to(ROOT).parts) for file in (ROOT / "exporter").rglob("__init__.py")}
    assert set(config["options"]["packages"].split()) == found | {"exporter_cpp", "exporter_models"}


def test_importing_the_package_is_light() -> None:
    assert modules_after("import exporter; exporter.__version__; dir(exporter)").isdisjoint(HEAVY | {"numpy", "rich"})


def test_public_names_are_imported_lazily() -> None:
    assert "torch" in modules_after("import exporter; exporter.open_artifact; exporter.export; exporter.Artifact")
    assert modules_after("import exporter; exporter.Recipe").isdisjoint(HEAVY)


def test_unknown_names_raise_attribute_error() -> None:
    import exporter

    with pytest.raises(AttributeError, match="no attribute 'surprise'"):
        exporter.surprise  # noqa: B018


@pytest.mark.parametrize(
    "module",
    [
        "runs.pipeline",
        "runs.check_bundle",
        "report",
        "runs.doctor",
        "workers.session.client",
        "workers.explain",
        "workers.repair.search",
        "deploy.cpp",
        "cli.export",
        "cli.explain",
        "cli.repair",
        "release.run",
    ],
)
def test_modules_of_the_parent_do_not_import_torch(module: str) -> None:
    assert modules_after(f"import exporter.{module}").isdisjoint(HEAVY)


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["--version"],
        ["export", "--help"],
        ["release", "-h"],
        ["models"],
        ["targets"],
        ["export", "bort"],
        ["runner", "-h"],
    ],
    ids=" ".join,
)
def test_commands_without_a_model_do_not_import_torch(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HELP.format(words=words)], capture_output=True, text=True, check=True, timeout=60
    )
    code, modules = json.loads(done.stderr.splitlines()[-1])
    assert code == (2 if "bort" in words else 0)
    assert set(modules).isdisjoint(HEAVY)


def test_help_imports_no_unneeded_modules() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HELP.format(words=["--help"])], capture_output=True, text=True, check=True, timeout=60
    )
    ours = {m for m in json.loads(done.stderr.splitlines()[-1])[1] if m.startswith("exporter.")}
    heavy = ("pipeline", "report", "isolate", "records", "serialization", "publishing")
    assert ours.isdisjoint(f"exporter.{name}" for name in heavy)
