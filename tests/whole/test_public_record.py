"""Publicly known traps of PyTorch's exporters. Each test shows the trap with bare calls, and that exporter avoids it.

Tested elsewhere: onnxruntime's fallback provider and self-contained files in test_targets.py, baked branches and loops
in test_planted_defects.py, crashes of jobs in test_pipeline.py.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
import warnings
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fuzz.inline import Inline
from support.commands import NATIVE, RECIPES, ROOT, recipe_path, request_for
from support.lending import lend
from torch.utils._pytree import tree_structure, treespec_dumps

from exporter import open_artifact, targets
from exporter.bundle import layout as bundles
from exporter.core import environment, tolerances
from exporter.core.contract_records import Contract, TensorSpec
from exporter.core.errors import ContractError
from exporter.core.records import VariantRecord
from exporter.core.size_range import Range
from exporter.model import recipes
from exporter.model.capture import Program, export_program
from exporter.model.flattening import FlatModule, flatten_inputs
from exporter.runs import pipeline, session_checks
from exporter.targets import _adaptive_pools, _convolutions, _objects, _onnx_rewriting
from exporter.workers.children import Zygote

OPTIONS = targets.Options(threads=1)


def recipe(name: str) -> tuple[torch.nn.Module, Any]:
    """Return the model of a recipe in public_record.py, in eval mode, and the function that makes its inputs."""
    loaded = recipes.load(recipes.find(recipe_path(f"public_record:{name}")))
    torch.manual_seed(0)
    return loaded.load("random").eval(), loaded.inputs


@pytest.fixture
def export(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """`export("bert", "trace,script")` runs the pipeline in this process; returns rows by name, and the bundle."""
    monkeypatch.setattr("exporter.runs.pipeline.Zygote", Inline)
    monkeypatch.setenv("EXPORTER_RUN", "/nowhere/exporter-run")

    def act(name: str, names: str) -> tuple[dict[str, VariantRecord], Path]:
        manifest, place = pipeline.run(request_for(f"public_record:{name}", tmp_path / name, names))
        return {row.name: row for row in manifest.variants}, place

    with Inline():  # restores what loading a recipe changes in this process
        yield act


def passed(rows: dict[str, VariantRecord]) -> bool:
    assert {name: row.reason for name, row in rows.items() if row.status != "passed"} == {}
    return True


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Suppress the warnings of a bare call, which would be errors here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# torch.jit.trace


def test_trace_drops_keywords(export: Any) -> None:
    """With an empty tuple of example inputs, torch.jit.trace calls the model without any."""
    model, inputs = recipe("keywords")
    bare = torch.jit.trace(model, (), example_kwarg_inputs=inputs(2))
    with pytest.raises(RuntimeError, match="expected at most 1 argument"):
        bare(**inputs(2))
    rows, place = export("keywords", "trace")
    assert passed(rows)
    given = inputs(3)
    assert torch.equal(open_artifact(place / "trace.pt")(**given)["output"], given["x"] * given["mask"])


@pytest.mark.parametrize("name", ["named", "model_outputs"])
def test_trace_refuses_or_forgets_structures(export: Any, name: str) -> None:
    """Dicts need strict=False; a ModelOutput becomes a plain dict, and so do those nested in it."""
    model, inputs = recipe(name)
    with pytest.raises(RuntimeError, match=r"dict at the output of the tracer|cannot infer type"), quietly():
        torch.jit.trace(model, (inputs(2)["x"],))
    rows, place = export(name, "trace,script,export,onnx")
    assert passed(rows)
    names = {"named": ["logits", "hidden"], "model_outputs": ["logits", "hidden_states.0", "hidden_states.1"]}[name]
    for row in rows.values():
        assert list(open_artifact(place / row.artifact.path)(inputs(3)["x"])) == names


def test_tracer_warnings_prove_nothing(export: Any) -> None:
    """A loop that is wrong at other lengths has no warnings; a BERT that is right at every size has several."""
    from torch.jit import TracerWarning

    model, inputs = recipe("steps")
    with warnings.catch_warnings(record=True) as of_steps:
        warnings.simplefilter("always")
        bare = torch.jit.trace(model, (inputs(2, 5)["x"],))
    x = inputs(2, 8)["x"]
    assert not torch.allclose(bare(x), model(x))
    rows, _ = export("steps", "trace,script")
    assert "length is fixed at 5" in rows["trace"].reason
    assert rows["script"].status == "passed"
    rows, _ = export("bert", "trace")
    assert passed(rows)
    assert [w for w in of_steps if issubclass(w.category, TracerWarning)] == []
    assert len([w for w in rows["trace"].warnings if "might cause the trace to be incorrect" in w.message]) > 0


def test_script_does_not_read_transformers(export: Any) -> None:
    model, inputs = recipe("bert")
    with (
        pytest.raises((OSError, RuntimeError), match=r"[Ff]ailed to get source|Can't get source|Unknown type"),
        quietly(),
    ):
        torch.jit.script(model)
    rows, place = export("bert", "script")
    assert passed(rows)
    ids = inputs(3, 11)["input_ids"]
    torch.testing.assert_close(
        open_artifact(place / "script.pt")(ids)["last_hidden_state"], model(ids).last_hidden_state, rtol=1e-4, atol=1e-5
    )


@pytest.mark.filterwarnings("error::FutureWarning")
def test_torchscript_is_deprecated(tmp_path: Path) -> None:
    """torch.jit warns at every call since 2.14; exporter makes an artifact even if warnings are errors."""
    model, inputs = recipe("named")
    warns = False
    try:
        torch.jit.trace(torch.nn.ReLU(), torch.ones(1))
    except FutureWarning:
        warns = True
    assert warns or torch.__version__ < "2.14"
    example = flatten_inputs(model, inputs(2))
    module = FlatModule(model, example).eval()
    outputs = (TensorSpec("logits", "float32", ("batch", 2)), TensorSpec("hidden", "float32", ("batch", 4)))
    found = Contract("named", (TensorSpec("x", "float32", ("batch", 4)),), outputs, {"batch": Range(1, 6)})
    torch.export.save(export_program(module, example.tensors, found), tmp_path / "exported.pt2")
    program = Program(found, "cpu", lambda: module, lambda: example.tensors, tmp_path / "exported.pt2")
    for name in ("trace", "script"):
        targets.get(name).export(program, tmp_path / "named.pt", OPTIONS)
        assert len(targets.get(name).load(tmp_path / "named.pt", OPTIONS).run((torch.ones(3, 4),))) == 2


# torch.export and ONNX


def test_an_example_of_one_is_fixed(export: Any) -> None:
    """Dim.AUTO makes a batch of 1 a constant, and reports it only in a log line."""
    model, inputs = recipe("one")
    bare = torch.export.export(model, (inputs(1)["x"],), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    with pytest.raises((AssertionError, RuntimeError), match=r"[Gg]uard|== 1|Expected input"):
        bare.module()(inputs(3)["x"])
    rows, place = export("one", "export,onnx")
    assert passed(rows)
    assert open_artifact(place / "exported.pt2")(inputs(3)["x"])["logits"].shape == (3, 2)


def test_a_cache_in_the_outputs(export: Any) -> None:
    model, inputs = recipe("gpt2")
    with pytest.raises(Exception, match="DynamicCache"), without_registered_caches(), quietly():
        torch.export.export(model, (), inputs(2, 5), strict=False)
    rows, place = export("gpt2", "trace,script,export,onnx")
    assert passed(rows)
    ids = inputs(3, 7)["input_ids"]
    with torch.no_grad():
        eager = model(ids, use_cache=True)
    (cache,) = (name for name in eager if name != "logits")  # past_key_values, or cache since transformers 5.24
    for row in rows.values():
        outputs = open_artifact(place / row.artifact.path)(ids)
        assert list(outputs) == ["logits", f"{cache}.0.key", f"{cache}.0.value"]
        torch.testing.assert_close(outputs[f"{cache}.0.value"], eager[cache].layers[0].values, rtol=1e-4, atol=1e-5)


@contextlib.contextmanager
def without_registered_caches() -> Iterator[None]:
    """Restore the state before any export, in which pytree does not know transformers' cache."""
    from torch.utils import _pytree as pytree
    from transformers import DynamicCache

    kept = pytree.SUPPORTED_NODES.pop(DynamicCache, None)
    try:
        yield
    finally:
        if kept is not None:
            pytree.SUPPORTED_NODES[DynamicCache] = kept


def test_onnx_loses_names_and_weights(export: Any, tmp_path: Path) -> None:
    """The keys of a dict of outputs are lost; the weights are in a second file, without which nothing loads."""
    import onnx
    import onnxruntime

    def outputs(path: Path) -> list[str]:
        return [output.name for output in onnx.load(str(path), load_external_data=False).graph.output]

    model, inputs = recipe("sums")
    bare, moved = tmp_path / "bare.onnx", tmp_path / "moved" / "bare.onnx"
    torch.onnx.export(model, (inputs(2)["x"],), str(bare), dynamo=True, verbose=False)
    assert outputs(bare) != ["hidden", "sum", "logits"]
    assert (tmp_path / "bare.onnx.data").is_file()
    moved.parent.mkdir()
    shutil.copy(bare, moved)
    with pytest.raises(Exception, match=r"bare\.onnx\.data"):
        onnxruntime.InferenceSession(str(moved), providers=["CPUExecutionProvider"])
    rows, place = export("sums", "onnx")
    assert passed(rows)
    assert outputs(place / "model.onnx") == ["hidden", "sum", "logits"]
    assert not list(place.glob("*.data"))
    alone = Path(shutil.copy(place / "model.onnx", moved.parent))
    assert open_artifact(alone)(inputs(3)["x"])["logits"].shape == (3, 8)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_onnxruntime_falls_back_silently(export: Any) -> None:
    """In exporter it is an error, which test_targets.py tests."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    _, place = export("named", "onnx")
    wanted = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    with quietly():  # the CPU build of onnxruntime does warn
        session = onnxruntime.InferenceSession(str(place / "model.onnx"), providers=wanted)
    assert session.get_providers() == ["CPUExecutionProvider"]


# torch.compile


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    """Isolate what a test compiles and configures."""
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=8, fail_on_recompile_limit_hit=False):
        yield
    torch._dynamo.reset()


def test_torch_compile_runs_the_ninth_shape_in_eager(fresh_dynamo: None) -> None:
    """Past its recompile limit, torch.compile runs eager, and a benchmark would report that as compiled."""
    compiles: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        compiles.append(1)
        return graph.forward

    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    bare = torch.compile(doubled, backend=backend, dynamic=False)
    for size in range(2, 14):
        assert torch.equal(bare(torch.ones(size)), torch.full((size,), 2.0))
    assert len(compiles) == 8, "of twelve shapes, the last four were not compiled"
    torch._dynamo.reset()
    module, example = torch.nn.ReLU(), (torch.ones(2, 4),)
    program = Program(Contract("m", (), (), {}), "cpu", lambda: module, lambda: example, Path("none"))
    targets.live("compile").live(program, replace(OPTIONS, variant="default"))
    ours = torch.compile(doubled, backend=backend, dynamic=False)
    with pytest.raises(Exception, match=r"[Rr]ecompile.?limit"):
        call_at_many_sizes(ours)


def call_at_many_sizes(function: Any) -> None:
    for size in range(2, 100):
        function(torch.ones(size))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU; torch.compile uses them there only")
def test_reduce_overhead_overwrites_its_outputs(fresh_dynamo: None) -> None:
    module, example = torch.nn.ReLU().cuda(), (torch.ones(2, 4, device="cuda"),)
    bare = torch.compile(module, mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(3):
            first = bare(example[0])
        bare(2 * example[0])
    with contextlib.suppress(RuntimeError):  # later versions of torch notice, and raise
        assert not torch.equal(first, example[0])
    program = Program(Contract("m", (), (), {}), "cuda", lambda: module, lambda: example, Path("none"))
    run = targets.live("compile").live(program, replace(OPTIONS, variant="reduce-overhead", device="cuda")).run
    kept = [run((scale * example[0],))[0] for scale in (1, 1, 1, 2)]
    assert torch.equal(kept[2], example[0])


# AOTInductor

BARE = """
import sys, torch, warnings
sys.path.insert(0, sys.argv[1])
import public_record
warnings.simplefilter("ignore")
model, example = public_record.sums.load("random").eval(), public_record.sums.inputs(2)["x"]
with torch.no_grad():
    program = torch.export.export(model, (example,), dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=512)},))
once = {"aot_inductor.precompile_headers": False}  # nothing else uses these headers
torch._inductor.aoti_compile_and_package(program, package_path=sys.argv[2], inductor_configs=once)
"""
RUN = """
import json, sys, torch
loader = torch._C._aoti.AOTIModelPackageLoader(sys.argv[1], "model", False, 1, -1)
print(json.dumps([[t.tolist() for t in loader.run([eval(x)])] for x in sys.argv[2:]]))
"""


@pytest.fixture(scope="module")
def packages(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A package made with bare calls, and the bundle of a run, both for the model `sums`."""
    if environment.compiler() is None:
        pytest.skip("AOTInductor needs a C++ compiler")
    folder = tmp_path_factory.mktemp("packages")
    bare = subprocess.Popen([sys.executable, "-c", BARE, str(RECIPES), str(folder / "bare.pt2")])
    try:
        with pytest.MonkeyPatch.context() as patch:
            lend(zygote, patch)
            manifest, place = pipeline.run(request_for("public_record:sums", folder / "sums", "compile"))
    finally:
        assert bare.wait() == 0
    assert passed({row.name: row for row in manifest.variants})
    return folder / "bare.pt2", place


def run_bare(package: Path, *inputs: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Return the outputs for each expression, evaluated in a separate process."""
    command = [sys.executable, "-c", RUN, str(package), *inputs]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables}, check=False)


WRONG = {
    "x: dtype float64": "torch.ones(3, 64, dtype=torch.float64)",
    "x: dtype int64": "torch.ones(3, 64, dtype=torch.int64)",
    "x: 3 dimensions": "torch.ones(3, 64, 2)",
    "batch is 600": "torch.ones(600, 64)",
    "x dim 1 is 65": "torch.ones(3, 65)",
}


def test_a_bare_package_does_not_check_inputs(packages: tuple[Path, Path]) -> None:
    """It returns numbers for wrong dtypes, ranks and sizes; exporter refuses them."""
    bare, place = packages
    done = run_bare(bare, *WRONG.values())
    assert done.returncode == 0, done.stderr
    answers = [len(hidden) for hidden, *_ in json.loads(done.stdout)]
    assert answers == [3, 3, 3, 600, 3]
    hidden = [torch.tensor(answer[0]) for answer in json.loads(done.stdout)]
    assert not torch.equal(hidden[0], torch.full((3, 64), 3.0)), "float64 is read as float32"
    ours = open_artifact(place / "compile.pt2")
    for message, expression in WRONG.items():
        with pytest.raises(ContractError, match=message):
            ours(eval(expression))
    transposed = ours(torch.ones(64, 3).t())["hidden"]
    assert torch.equal(transposed, torch.full((3, 64), 3.0))


def test_torchs_input_checks_refuse_allowed_inputs(packages: tuple[Path, Path]) -> None:
    """AOTI_RUNTIME_CHECK_INPUTS=1 refuses a batch of 1, which is in the program's range."""
    bare, place = packages
    done = run_bare(bare, "torch.ones(1, 64)", AOTI_RUNTIME_CHECK_INPUTS="1")
    assert done.returncode != 0
    assert "dim value is too small" in done.stderr
    assert open_artifact(place / "compile.pt2")(torch.ones(1, 64))["sum"].item() == 64 * 3


def test_freezing_does_not_change_outputs(packages: tuple[Path, Path]) -> None:
    """pytorch/pytorch#190757. This tests parity; comparing `compile` with `compile:default` shows the speed."""
    bare, place = packages
    manifest = bundles.read_manifest(place)
    (row,) = manifest.variants
    assert row.parity is not None
    assert row.parity.verdict in ("exact", "rounding")
    loader = torch._C._aoti.AOTIModelPackageLoader(str(bare), "model", False, 1, -1)
    x = torch.randn(37, 64)
    frozen = open_artifact(place / "compile.pt2")(x)
    tolerance = tolerances.FLOAT32
    for ours, unfrozen in zip(frozen.values(), loader.run([x]), strict=True):
        torch.testing.assert_close(ours, unfrozen, rtol=tolerance.rtol, atol=tolerance.atol)


def differences_of_page(work: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[float]]:
    """Run the programs of docs/upstream.md in this process, and return the differences that each prints."""
    page = (ROOT / "docs/upstream.md").read_text()
    monkeypatch.chdir(work)
    found: list[list[float]] = []
    for part in page.split("```python\n")[1:]:
        torch.compiler.reset()
        own: list[float] = []
        _objects.keep_headers()
        with _objects.reused():
            exec(part.partition("```")[0], {"print": lambda value, own=own: own.append(float(value))})
        found.append(own)
    return found


def test_programs_that_compilers_get_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the workarounds, AOTInductor and onnxscript are wrong; if they no longer are, the workarounds can go.

    Before torch 2.14 the buffer of the first program is not always overwritten.
    """
    (overwritten, last), (misread,), (strided,), (pooled,), (added,), (longer,) = differences_of_page(
        tmp_path, monkeypatch
    )
    assert misread > 0.05
    assert strided > 0.05
    assert pooled > 0.05
    assert added == -math.inf
    assert longer == 1  # mended in the translation of the whole program
    assert overwritten > 0.05 or torch.torch_version.TorchVersion(torch.__version__) < "2.14"
    assert last < 1e-5
    right = (_convolutions.reading_before_writing(), _convolutions.reading_biases(), _convolutions.packing())
    with contextlib.ExitStack() as changed:
        for change in (*right, _adaptive_pools.at_all_sizes(), _onnx_rewriting.with_exact_zeros()):
            changed.enter_context(change)
        rounding = 39 * 1e-6  # of the largest output, 39, which is a sum of 144 products
        *mended, _ = differences_of_page(tmp_path, monkeypatch)
        assert max(max(map(abs, found)) for found in mended) < rounding


ILLEGAL = "__attribute__((constructor)) static void start() { __builtin_trap(); }"  # ud2: SIGILL on x86


def test_a_package_for_another_processor_fails_its_row(
    packages: tuple[Path, Path], zygote: Zygote, tmp_path: Path
) -> None:
    """pytorch/pytorch#121516: instructions that the processor lacks end the process that loads the package."""
    if platform.machine() != "x86_64":
        pytest.skip("the trap is of x86")
    folder = Path(shutil.copytree(packages[1], tmp_path / "sums"))
    (folder / "SHA256SUMS").unlink()  # otherwise it would be refused as altered
    (tmp_path / "illegal.cpp").write_text(ILLEGAL)
    library = tmp_path / "illegal.so"
    subprocess.run([environment.compiler(), "-shared", "-fPIC", "illegal.cpp", "-o", library], cwd=tmp_path, check=True)
    with zipfile.ZipFile(packages[1] / "compile.pt2") as old, zipfile.ZipFile(folder / "compile.pt2", "w") as new:
        for item in old.infolist():
            new.writestr(item, library.read_bytes() if item.filename.endswith(".so") else old.read(item))
    assert run_bare(folder / "compile.pt2", "torch.ones(3, 64)").returncode == -signal.SIGILL
    (row,) = bundles.read_manifest(folder).variants
    found = [
        session_checks.check(kind, opener, row, None)[0]
        for kind, opener in session_checks.openers(zygote, folder, row, OPTIONS, tmp_path / "check.log", 60.0)
    ]
    assert [session.session for session in found] == ["python", "native"][: 1 + NATIVE]
    for session in found:
        assert (session.status, session.stage) == ("failed", "load")
        assert "SIGILL" in session.reason
        assert "built for" in session.reason
        assert session.remedy


class SlowLoader:
    """A loader whose construction lets other threads run, as C++'s does and Python's will (#197516)."""

    now, most = 0, 0

    def __init__(self, *_: object) -> None:
        SlowLoader.now += 1
        SlowLoader.most = max(SlowLoader.most, SlowLoader.now)
        time.sleep(0.05)
        SlowLoader.now -= 1

    def get_call_spec(self) -> list[str]:
        """Return the call specification of one input and one output."""
        return [treespec_dumps(tree_structure(((0,), {}))), treespec_dumps(tree_structure((0,)))]

    def update_constant_buffer(self, *_: object) -> None:
        """Accept the mapped weights."""


def in_threads(construct: Any, count: int = 4) -> list[Any]:
    """Return the results of `count` concurrent calls."""
    with ThreadPoolExecutor(count) as pool:
        return [future.result() for future in [pool.submit(construct) for _ in range(count)]]


def test_loaders_are_constructed_one_at_a_time(packages: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """pytorch/pytorch#194128: two concurrent loaders read each other's metadata. C++ has its own lock."""
    path = packages[1] / "compile.pt2"
    outputs = in_threads(lambda: open_artifact(path)(torch.ones(3, 64))["sum"].item())
    assert outputs == [3 * 64 * 3] * 4
    monkeypatch.setattr(torch._C._aoti, "AOTIModelPackageLoader", SlowLoader)
    monkeypatch.setattr("exporter.targets._packages._closed", {})  # otherwise closed packages are used again
    in_threads(SlowLoader)
    assert SlowLoader.most > 1
    SlowLoader.most = 0
    in_threads(lambda: targets.get("compile").load(path, OPTIONS))
    assert SlowLoader.most == 1
