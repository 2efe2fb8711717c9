"""What several tests share: recipes, one zygote, one bundle of a tiny model."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.commands import Cli, Done, Run, request_for

from exporter.core import environment
from exporter.core.records import Manifest
from exporter.runs import pipeline
from exporter.workers.children import EXPORTING, Zygote

HEADERS = Path(__file__).parents[1] / "build/inductor/precompiled_headers"  # precompiling them takes 20 s
HEAVY = (
    "torch._inductor.compile_fx",
    "torch.onnx._internal.exporter._core",
    "onnxscript",
    "onnxruntime",
)  # of most jobs
TEMPORARY = os.environ.get("TMPDIR", "/tmp")
# Files that take longest, which go first: workers that share the others out end at about the same time then.
LONGEST = ("fuzz", "coverage", "planted_defects", "pipeline", "release_cluster", "precision", "release")


def pytest_report_header() -> str:
    """Say once why there are no C++ sessions in this run."""
    found = environment.find_runner()
    return f"exporter-run: {found}" if found else "exporter-run: not built (make cpp), its tests are left out"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The order of files; within each, tests stay as they are."""
    ranks = {f"test_{name}": rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path.stem, len(ranks)))


@pytest.fixture(scope="session", autouse=True)
def _no_outside_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use one thread a process, fetch nothing, and keep compilers' caches, but not headers, in a temporary folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("HF_HUB_OFFLINE", "1")
        cache = tmp_path_factory.mktemp("inductor")
        HEADERS.mkdir(parents=True, exist_ok=True)
        (cache / HEADERS.name).symlink_to(HEADERS)
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache))
        here = Path(__file__).parent
        patch.setenv("PYTHONPATH", f"{here}{os.pathsep}{here.parent}")  # jobs.py, and this tree
        patch.delenv("COLUMNS", raising=False)
        handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
        yield
        signal.signal(signal.SIGINT, handler)


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """One zygote for all tests: importing torch costs seconds."""
    with contextlib.ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TMPDIR", TEMPORARY)  # not that of the test that comes first, which goes away
            shared = stack.enter_context(Zygote(None, () if environment.gpus() else (*EXPORTING, *HEAVY)))
        yield shared


@pytest.fixture
def lent_zygote(zygote: Zygote, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of this test take their children from the shared zygote."""
    for module in ("exporter.runs.pipeline", "exporter.runs.check_bundle", "exporter.workers.children"):
        monkeypatch.setattr(f"{module}.Zygote", lambda *_: zygote.lend())


@pytest.fixture
def run(lent_zygote: None, tmp_path: Path) -> Run:
    """Run the pipeline for a recipe: `run("tiny:mlp", "trace,onnx", bench=False, ...)`."""

    def act(recipe: str, names: str = "trace", out: Path | None = None, **settings: Any) -> tuple[Manifest, Path]:
        return pipeline.run(request_for(recipe, out or tmp_path / "bundle", names, **settings))

    return act


@pytest.fixture(scope="session")
def made_bundle(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of `pair` through every target that needs no compiler. Do not change it: take `bundle` for that."""
    out = tmp_path_factory.mktemp("made") / "pair"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("exporter.runs.pipeline.Zygote", lambda *_: zygote.lend())
        manifest, place = pipeline.run(request_for("tiny:pair", out, "trace,script,onnx,export"))
    assert {v.name: v.reason for v in manifest.variants if v.status == "failed"} == {}
    return place


@pytest.fixture
def bundle(made_bundle: Path, tmp_path: Path) -> Path:
    """A copy of the bundle that a test may spoil."""
    return Path(shutil.copytree(made_bundle, tmp_path / "pair"))


@pytest.fixture
def cli(lent_zygote: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    """The command line in this process, through the console script's own entry: `cli("report", bundle)`."""
    from exporter.cli import main, main_export

    def act(*words: object, entry: Callable[[], None] = main) -> Done:
        name = "export" if entry is main_export else "exporter"
        monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            entry()
        out, err = capfd.readouterr()
        return Done(int(ended.value.code or 0), out, err)

    handler = signal.getsignal(signal.SIGTERM)
    yield act
    signal.signal(signal.SIGTERM, handler)
