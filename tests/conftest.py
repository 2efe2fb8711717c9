"""Shared fixtures: recipes, one zygote, one bundle of a tiny model."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.commands import Cli, Done, Run, request_for
from support.lending import lend

from exporter.core import environment
from exporter.core.records import Manifest
from exporter.runs import pipeline
from exporter.workers.children import EXPORTING, Zygote

# Before anything imports inductor, which reads its settings once.
os.environ["AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL"] = "O0"  # of a package's wrapper, not of its kernels
os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = "1"  # the CPU runs the instructions that it has: compile no program to see it
INDUCTOR = Path(__file__).parents[1] / "build/inductor"  # the cache of `make demo`
HEADERS = INDUCTOR / "precompiled_headers"  # precompiling them takes 20 s
HEAVY = (
    "torch._inductor.compile_fx",
    "torch.onnx._internal.exporter._core",
    "torch.onnx._internal.exporter._torchlib.ops",
    "onnxscript",
    "onnxruntime",
    "support.warm",
)  # imported by most jobs
TEMPORARY = os.environ.get("TMPDIR", "/tmp")
# The slowest files, which run first, so that all pytest workers finish at about the same time.
LONGEST = (
    *("fuzz", "coverage", "profile", "wheels", "release_cluster", "profile_train", "precision", "pipeline", "repair"),
    *("public_record", "planted_defects", "bert", "targets", "bisect", "release"),
)


def pytest_report_header() -> str:
    """Report whether there are C++ sessions in this run."""
    found = environment.find_runner()
    return f"exporter-run: {found}" if found else "exporter-run: not built (make cpp), its tests are skipped"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect no garbage while the tests are imported, and never again look at what that made."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files; within a file, the order of the tests does not change."""
    ranks = {f"test_{name}": rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path.stem, len(ranks)))


@pytest.fixture(scope="session", autouse=True)
def _no_outside_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use one thread per process, download nothing, and compile everything once in each run of pytest.

    Inductor's precompiled headers and its tests of the CPU are kept between runs.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("OMP_WAIT_POLICY", "PASSIVE")  # waiting threads leave the cores to other tests
        patch.setenv("HF_HUB_OFFLINE", "1")
        cache = tmp_path_factory.mktemp("inductor")
        HEADERS.mkdir(parents=True, exist_ok=True)
        (cache / HEADERS.name).symlink_to(HEADERS)
        shared = tmp_path_factory.getbasetemp()  # of this pytest worker, inside the folder of all workers
        objects = (shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared) / "objects"
        objects.mkdir(exist_ok=True)
        (cache / "objects").symlink_to(objects)
        for loaded in INDUCTOR.glob("??/*.so.load_ok"):  # what tells whether the CPU runs an instruction set
            shutil.copytree(loaded.parent, cache / loaded.parent.name, dirs_exist_ok=True)
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache))
        patch.setenv("EXPORTER_CACHE_GB", "0")  # tests change what builds artifacts
        here = Path(__file__).parent
        patch.setenv("PYTHONPATH", str(here.parent), prepend=os.pathsep)  # this source tree
        patch.setenv("PYTHONPATH", str(here), prepend=os.pathsep)  # jobs.py
        patch.delenv("COLUMNS", raising=False)
        handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores SIGINT
        yield
        signal.signal(signal.SIGINT, handler)


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Seed torch, if it is imported, so that a test draws the same numbers whatever tests ran before."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """One zygote for all tests, because importing torch takes seconds."""
    with contextlib.ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TMPDIR", TEMPORARY)  # not the folder of the first test, which is deleted
            shared = stack.enter_context(Zygote(None, () if environment.gpus() else (*EXPORTING, *HEAVY)))
        yield shared


@pytest.fixture
def lent_zygote(zygote: Zygote, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the runs and commands of this test fork from the shared zygote."""
    lend(zygote, monkeypatch)


@pytest.fixture
def run(lent_zygote: None, tmp_path: Path) -> Run:
    """A function that runs the pipeline: `run("tiny:mlp", "trace,onnx", bench=False, ...)`."""

    def act(recipe: str, names: str = "trace", out: Path | None = None, **settings: Any) -> tuple[Manifest, Path]:
        return pipeline.run(request_for(recipe, out or tmp_path / "bundle", names, **settings))

    return act


@pytest.fixture(scope="session")
def made_bundle(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of `pair` with every target that needs no compiler. Do not change it; use `bundle` for that."""
    out = tmp_path_factory.mktemp("made") / "pair"
    with pytest.MonkeyPatch.context() as patch:
        lend(zygote, patch)
        manifest, place = pipeline.run(request_for("tiny:pair", out, "trace,script,onnx,export"))
    assert {v.name: v.reason for v in manifest.variants if v.status == "failed"} == {}
    return place


@pytest.fixture
def bundle(made_bundle: Path, tmp_path: Path) -> Path:
    """A copy of the bundle that a test may change."""
    return Path(shutil.copytree(made_bundle, tmp_path / "pair"))


@pytest.fixture
def cli(lent_zygote: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    """A function that runs the console script's entry point in this process: `cli("report", bundle)`."""
    from exporter.cli import main, main_export

    def act(*words: object, entry: Callable[[], None] = main) -> Done:
        name = "export" if entry is main_export else "exporter"
        monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            entry()
        out, err = capfd.readouterr()
        return Done(int(ended.value.code or 0), out, err)

    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield act
    for number, handler in handlers.items():
        signal.signal(number, handler)
