"""The same tests for every target, built-in and installed."""

from __future__ import annotations

import dataclasses
import errno
import importlib.metadata
import itertools
import os
import platform
import re
import subprocess
import sys
import types
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.commands import Run

from exporter import targets
from exporter.bundle import layout
from exporter.core import causes, environment, machine_code
from exporter.core.contract import entry
from exporter.core.contract_records import Contract, TensorSpec
from exporter.core.errors import ArtifactError, ExportError, MissingDependency, UsageError
from exporter.core.size_range import Range
from exporter.model.capture import Program, export_program
from exporter.model.flattening import FlatModule, flatten_inputs
from exporter.model.no_program import NoProgram
from exporter.targets import (
    Options,
    Variant,
    _inductor,
    _int8,
    _onnx_translations,
    _ort_cuda_graphs,
    _ort_level,
    _plugins,
)
from exporter.targets import onnx as onnx_target
from exporter.workers.children import Zygote

NAMES = targets.names()
CONTRACT = Contract(
    "toy",
    (TensorSpec("x", "float32", ("batch", 4)), TensorSpec("mask", "float32", ("batch", 4))),
    (TensorSpec("y", "float32", ("batch", 3)), TensorSpec("best", "int64", ("batch",))),
    {"batch": Range(1, 8)},
)
OPTIONS = Options(threads=1)
pytestmark = pytest.mark.filterwarnings(
    "ignore:The TorchScript type system:UserWarning",  # caused by an annotation in torch.fx.GraphModule
)


class Toy(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.tanh(self.linear(x * mask))
        return y, y.argmax(-1)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    torch.manual_seed(0)
    model = Toy().eval()
    example = (torch.randn(2, 4), torch.ones(2, 4))
    module = FlatModule(model, flatten_inputs(model, {"x": example[0], "mask": example[1]})).eval()
    file = tmp_path_factory.mktemp("work") / "exported.pt2"
    torch.export.save(export_program(module, example, CONTRACT), file)
    return Program(CONTRACT, "cpu", lambda: module, lambda: example, file)


@pytest.fixture(scope="module")
def artifacts(program: Program, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The path of each target's artifact, filled in as they are made."""
    return {}


@pytest.fixture
def made(
    request: pytest.FixtureRequest,
    program: Program,
    artifacts: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """The artifact of the target `name`, made once."""
    name = request.node.callspec.params["name"]
    if name not in artifacts:
        target = targets.get(name)
        path = tmp_path_factory.mktemp("made") / target.artifact
        target.export(program, path, OPTIONS)
        artifacts[name] = path
    return artifacts[name]


@pytest.mark.parametrize("name", NAMES)
def test_declares_the_required_attributes(name: str) -> None:
    target = targets.get(name)
    assert re.fullmatch(r"[\w.-]+\.\w+", target.artifact)
    assert target.variants[0] == ""
    assert all(isinstance(r, str) for r in target.requires)
    assert isinstance(target.native, bool)
    assert target.__doc__
    targets.require(target)


@pytest.mark.parametrize("name", NAMES)
def test_the_artifact_contains_the_contract(name: str, made: Path) -> None:
    found = targets.get(name).read_contract(made)
    assert dataclasses.replace(found, build=None) == CONTRACT
    assert found.build == (machine_code.native() if name == "compile" else None)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("batch", [1, 2, 3, 8])
def test_matches_eager_at_every_batch(name: str, made: Path, program: Program, batch: int) -> None:
    loaded = targets.get(name).load(made, OPTIONS)
    inputs = (torch.randn(batch, 4), torch.ones(batch, 4))
    with torch.no_grad():
        want = program.module(*inputs)
    got = loaded.run(inputs)
    assert isinstance(got, tuple)
    assert [g.dtype for g in got] == [w.dtype for w in want]
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_reports_the_number_of_inputs(name: str, made: Path) -> None:
    """Opening an artifact is refused if its contract has another number."""
    assert targets.get(name).load(made, OPTIONS).takes == 2


@pytest.mark.parametrize("name", NAMES)
def test_loads_after_being_moved(name: str, made: Path, tmp_path: Path) -> None:
    alone = tmp_path / "elsewhere" / made.name
    alone.parent.mkdir()
    alone.write_bytes(made.read_bytes())
    assert len(targets.get(name).load(alone, OPTIONS).run((torch.ones(2, 4), torch.ones(2, 4)))) == 2


@pytest.mark.parametrize("name", NAMES)
def test_foreign_files_are_rejected(name: str, tmp_path: Path) -> None:
    target = targets.get(name)
    path = tmp_path / target.artifact
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(ArtifactError, match=target.artifact):
        target.load(path, OPTIONS)
    with pytest.raises(ArtifactError, match=target.artifact):
        target.read_contract(path)


@pytest.mark.parametrize("name", NAMES)
def test_truncated_files_are_rejected(name: str, made: Path, tmp_path: Path) -> None:
    target = targets.get(name)
    path = tmp_path / "cut" / target.artifact
    path.parent.mkdir()
    path.write_bytes(made.read_bytes()[: made.stat().st_size // 2])
    with pytest.raises(ArtifactError):
        target.load(path, OPTIONS)


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("trace", "compile")])
def test_export_reports_why_the_program_was_not_captured(name: str, program: Program, tmp_path: Path) -> None:
    class Unscriptable(torch.nn.Module):
        def forward(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> torch.Tensor:
            return args[0]

    module = FlatModule(Unscriptable(), program.module.example)  # type: ignore[attr-defined]
    lost = Program(CONTRACT, "cpu", lambda: module, lambda: program.example, tmp_path / "none.pt2")
    NoProgram("torch.export: a branch on data").write(tmp_path / "none.pt2")
    with pytest.raises(ExportError, match="a branch on data"):
        targets.get(name).export(lost, tmp_path / "artifact", OPTIONS)


def test_compile_without_a_compiler(program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "compiler", lambda: None)
    with pytest.raises(MissingDependency, match=r"no C\+\+ compiler") as raised:
        targets.get("compile").export(program, tmp_path / "c.pt2", OPTIONS)
    assert "g++" in raised.value.remedy


def test_compile_with_an_unusable_compiler_in_cxx(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "/nope/g++")
    with pytest.raises(MissingDependency, match=r"/nope/g\+\+ does not exist") as raised:
        targets.get("compile").export(program, tmp_path / "c.pt2", OPTIONS)
    described = causes.describe(raised.value, "compile")
    assert described.reason.startswith("The C++ compiler that CXX names cannot be used: ")
    assert (described.remedy, described.cause) == ("correct CXX, or unset it", "compiler-unusable")
    live = dataclasses.replace(OPTIONS, variant="default")
    with pytest.raises(MissingDependency, match=r"/nope/g\+\+ does not exist"):
        targets.live("compile").live(program, live)


def test_compile_with_a_cache_that_is_not_writable(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "/cache")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)  # root may write everywhere
    with pytest.raises(ExportError, match="Permission denied: '/cache'") as raised:
        targets.get("compile").export(program, tmp_path / "c.pt2", OPTIONS)
    described = causes.describe(raised.value, "compile")
    assert (described.remedy, described.cause) == (
        "set TORCHINDUCTOR_CACHE_DIR to a writable directory",
        "cache-not-writable",
    )


def test_inductor_detects_vector_instructions(program: Program, tmp_path: Path) -> None:
    """If inductor first looked while linking without libtorch, it would find none and cache that for everyone."""
    from torch._inductor import config, cpu_vec_isa

    settings: Any = config
    cpu_vec_isa.valid_vec_isa_list.cache_clear()
    with settings.patch({"cpp.vec_isa_ok": None}):  # the other tests set it, so that inductor does not look
        targets.get("compile").export(program, tmp_path / "c.pt2", OPTIONS)
        found = cpu_vec_isa.valid_vec_isa_list()
    assert found != [] or platform.machine() not in ("x86_64", "aarch64")
    probed = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).glob("objects/*.loads")
    assert list(probed) != [] or platform.machine() != "x86_64"
    cpu_vec_isa.valid_vec_isa_list.cache_clear()


def test_probes_for_vector_instructions_run_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Inductor would probe again in every process, and before torch 2.14 import torch for each probe."""
    from torch._inductor import cpu_vec_isa

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    probed: list[str] = []

    def probe(isa: Any, code: str) -> bool:
        probed.append(code)
        return True

    class Kind:
        check_build = probe

        def __str__(self) -> str:
            return "avx2"

        def __bool__(self) -> bool:
            return self.check_build("one") and self.check_build("other")

        def build_arch_flags(self) -> str:
            return "-mavx2"

    monkeypatch.setattr(cpu_vec_isa, "VecISA", Kind)
    monkeypatch.setattr(cpu_vec_isa, "x86_isa_checker", lambda: ["avx2"])
    for _ in range(2):
        monkeypatch.setattr(cpu_vec_isa, "supported_vec_isa_list", [Kind()])
        cpu_vec_isa.valid_vec_isa_list.cache_clear()
        assert _inductor.find_vector_instructions() == ()
    cpu_vec_isa.valid_vec_isa_list.cache_clear()
    assert probed == ["one", "other"]


def test_missing_vector_instructions_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import cpu_vec_isa

    monkeypatch.setattr(_inductor.environment, "isa", lambda: "avx2")
    monkeypatch.setattr(cpu_vec_isa, "valid_vec_isa_list", lambda: ["avx2"])
    assert _inductor.find_vector_instructions() == ()
    monkeypatch.setattr(cpu_vec_isa, "valid_vec_isa_list", list)
    (note,) = _inductor.find_vector_instructions()
    assert note.startswith("slow: no vector instructions")
    monkeypatch.setattr(_inductor.environment, "isa", lambda: "sse4_2")
    assert _inductor.find_vector_instructions() == ()


WIDE = re.compile(r"%(zmm\d+|[xy]mm(1[6-9]|[23]\d)|k[0-7])\b")  # registers that only AVX-512 has


def test_an_onnx_model_carries_its_level_of_optimizations(program: Program, tmp_path: Path) -> None:
    import onnxruntime as ort

    levels = ort.GraphOptimizationLevel
    for level, wanted in (("all", levels.ORT_ENABLE_ALL), ("basic", levels.ORT_ENABLE_BASIC)):
        path = tmp_path / f"{level}.onnx"
        options = dataclasses.replace(OPTIONS, graph_optimization=level)
        notes = targets.get("onnx").export(program, path, options).notes
        assert ("graph optimizations of onnxruntime: basic" in notes) == (level == "basic")
        assert (_ort_level.recorded(path), _ort_level.of(path)) == (level, wanted)
        assert onnx_target._session(path, OPTIONS).get_session_options().graph_optimization_level == wanted
        assert targets.get("onnx").read_contract(path) == program.contract
    half = tmp_path / "half.onnx"
    options = dataclasses.replace(OPTIONS, precision="fp16")
    assert "graph optimizations of onnxruntime: extended" in targets.get("onnx").export(program, half, options).notes
    assert _ort_level.recorded(half) == "extended"
    assert _ort_level.asked(dataclasses.replace(options, graph_optimization="basic")) == "basic"
    assert _ort_level.asked(dataclasses.replace(options, device="cuda")) == "all"
    assert _ort_level.lower(options) == ("basic", "none")
    data = path.read_bytes()
    path.write_bytes(data.replace(b"\x12\x05basic", b"\x12\x05later"))
    with pytest.raises(ArtifactError, match="'later'") as raised:
        onnx_target._session(path, OPTIONS)
    assert raised.value.remedy == "upgrade exporter"
    path.write_bytes(data[: data.rindex(b"basic") + 2])
    assert _ort_level.recorded(path) == "all"


def test_an_onnx_model_carries_the_options_of_its_session(program: Program, tmp_path: Path) -> None:
    import onnxruntime as ort

    path, entry = tmp_path / "model.onnx", "session.intra_op.allow_spinning"
    given = ("execution_mode=parallel", "enable_mem_pattern=False", "inter_op_num_threads=3", f"{entry}=0")
    exported = targets.get("onnx").export(program, path, dataclasses.replace(OPTIONS, session_options=given))
    assert set(exported.notes) >= {f"onnxruntime with {one}" for one in given}
    assert _ort_level.session_options(path) == given
    found = onnx_target._session(path, OPTIONS).get_session_options()
    assert found.execution_mode == ort.ExecutionMode.ORT_PARALLEL
    assert (found.enable_mem_pattern, found.inter_op_num_threads) == (False, 3)
    assert found.get_session_config_entry(entry) == "0"
    other = dataclasses.replace(OPTIONS, session_options=("enable_cpu_mem_arena=False",), graph_optimization="basic")
    found = onnx_target._session(path, other).get_session_options()  # as while tuning: instead of the recorded ones
    assert (found.enable_cpu_mem_arena, found.enable_mem_pattern) == (False, True)
    assert found.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    path.write_bytes(path.read_bytes().replace(b'["execution', b'{"execution'))
    with pytest.raises(ArtifactError, match="session options that cannot be read"):
        onnx_target._session(path, OPTIONS)


@pytest.mark.parametrize("wrong", ["enable_mem_pattern=0", "execution_mode=fast", "log_severity_level=1", "a.b", "x"])
def test_a_session_option_that_does_not_exist_is_refused(program: Program, tmp_path: Path, wrong: str) -> None:
    options = dataclasses.replace(OPTIONS, session_options=(wrong,))
    with pytest.raises(ExportError, match=wrong) as raised:
        targets.get("onnx").export(program, tmp_path / "model.onnx", options)
    assert "execution_mode=parallel" in raised.value.remedy
    assert list(tmp_path.iterdir()) == []


def test_the_users_settings_reach_inductor(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    from exporter.targets import compile as aot

    options = dataclasses.replace(OPTIONS, inductor=("freezing=False", "cpp.simdlen=1", "cpp.march=x86-64-v3"))
    settings = aot._settings(program.exported, options)
    assert (settings["freezing"], settings["cpp.simdlen"], settings["cpp.march"]) == (False, 1, "x86-64-v3")
    given: dict[str, Any] = {}
    monkeypatch.setattr(torch, "compile", lambda module, **how: given.update(how))
    aot.live(program, dataclasses.replace(options, variant="max-autotune-no-cudagraphs"))
    assert given["options"].items() >= {"max_autotune": True, "freezing": False, "cpp.simdlen": 1}.items()
    assert "mode" not in given
    with pytest.raises(ExportError, match="--inductor does not apply to compile:eager"):
        aot.live(program, dataclasses.replace(options, variant="eager"))


def test_an_operator_is_left_to_torchs_own_kernel(run: Run) -> None:
    manifest, place = run("blocks:block", "compile", fallback=("aten.gelu",))
    (row,) = [row for row in manifest.variants if row.name == "compile"]
    assert {session.session: session.status for session in row.sessions} == {"python": "passed", "native": "passed"}
    assert "torch's kernel of aten.gelu" in row.notes
    with zipfile.ZipFile(place / "compile.pt2") as package:
        (nodes,) = [
            name for name in package.namelist() if name.endswith(".json") and b"aten::gelu" in package.read(name)
        ]
    assert nodes


@pytest.mark.parametrize(
    ("name", "cause"),
    [("aten.tan", "--fallback aten.tan has no effect"), ("aten.tanj", "there is no operator aten.tanj")],
)
def test_a_fallback_without_effect_is_refused(name: str, cause: str) -> None:
    from torch._inductor import decomposition, lowering

    before = [dict(table) for table in (lowering.lowerings, decomposition.decompositions)]
    with pytest.raises(ExportError, match=cause), _inductor.falling_back([name]):
        pass
    assert [dict(table) for table in (lowering.lowerings, decomposition.decompositions)] == before


@pytest.mark.parametrize(
    ("given", "cause", "remedy"),
    [
        ("frezing=False", "inductor has no such setting", "did you mean freezing"),
        ("freezing=maybe", "freezing is a bool, by default False", "give freezing=False"),
    ],
)
def test_a_setting_that_inductor_lacks_is_refused(given: str, cause: str, remedy: str) -> None:
    with pytest.raises(ExportError, match=cause) as raised:
        _inductor.parse([given])
    assert remedy in raised.value.remedy


@pytest.mark.skipif(platform.machine() != "x86_64", reason="there are no portable packages for this machine")
@pytest.mark.parametrize("name", ["compile"])
def test_a_portable_package_has_no_avx512_registers(name: str, made: Path, program: Program, tmp_path: Path) -> None:
    portable = tmp_path / "portable.pt2"
    exported = targets.get(name).export(program, portable, dataclasses.replace(OPTIONS, portable=True))
    assert exported.notes == ("portable (x86-64-v3)",)
    assert exported.build == machine_code.PORTABLE == targets.get(name).read_contract(portable).build
    assert not WIDE.search(disassembled(portable, tmp_path))
    if "avx512f" in environment.cpu_flags():
        assert WIDE.search(disassembled(made, tmp_path)), "the pattern matches AVX-512 registers"


@pytest.mark.parametrize(("portable", "exact", "largest"), [(False, True, 255), (True, True, 127), (False, False, 127)])
def test_int8_uses_7_bits_for_cpus_without_vnni(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, portable: bool, exact: bool, largest: int
) -> None:
    monkeypatch.setattr(environment, "adds_bytes_exactly", lambda: exact)
    seen: list[torch.fx.GraphModule] = []
    _without_compiler(monkeypatch, lambda module, options: seen.append(module))
    program = dataclasses.replace(program, make_samples=lambda: ([], [program.example]))
    options = Options(precision="int8", portable=portable)
    made = targets.get("compile").export(program, tmp_path / "compile.pt2", options)
    assert (_int8.NARROW_INPUTS in made.notes) == (largest == 127)
    ranges = [node.args[3:5] for node in seen[0].graph.nodes if "quantize_per_tensor" in str(node.target)]
    assert ranges
    assert set(ranges) == {(0, largest)}


def _without_compiler(
    monkeypatch: pytest.MonkeyPatch, see: Callable[[torch.fx.GraphModule, dict[str, Any]], None]
) -> None:
    """Make packages that cannot be loaded; `see` gets each graph and its settings instead of inductor."""
    import torch._inductor.package.package

    def package(path: str, files: object) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("net/empty", "")

    def compile(module: torch.fx.GraphModule, args: Any, kwargs: Any, options: dict[str, Any]) -> list[str]:
        see(module, options)
        return []

    monkeypatch.setattr(torch._inductor, "aot_compile", compile)
    monkeypatch.setattr(torch._inductor.package.package, "package_aoti", package)


def disassembled(package: Path, folder: Path) -> str:
    """Return the package's machine code, disassembled by objdump, which comes with the assembler."""
    with zipfile.ZipFile(package) as archive:
        library = archive.extract(next(name for name in archive.namelist() if name.endswith(".so")), folder)
    return subprocess.run(["objdump", "-d", library], capture_output=True, text=True, check=True).stdout


class Halves(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.chunk(x, 2)[0] * 2


def test_onnx_without_the_graph_optimizer_if_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk of a dynamic dimension: `'NoneType' object has no attribute 'ndim'` in onnxscript 0.7."""
    model, x = Halves().eval(), torch.arange(8.0).reshape(4, 2)
    contract = Contract(
        "halves",
        (TensorSpec("x", "float32", ("batch", 2)),),
        (TensorSpec("y", "float32", (None, 2)),),
        {"batch": Range(2, 9)},
    )
    module = FlatModule(model, flatten_inputs(model, (x,))).eval()
    torch.export.save(export_program(module, (x,), contract), tmp_path / "exported.pt2")
    program = Program(contract, "cpu", lambda: module, lambda: (x,), tmp_path / "exported.pt2")
    target = targets.get("onnx")
    with monkeypatch.context() as bare:
        bare.setattr("exporter.targets.onnx._is_optimizers", lambda error: False)
        (note,) = target.export(program, tmp_path / "m.onnx", OPTIONS).notes
        assert "older exporter" in note
        assert "no attribute 'ndim'" in note
    (note,) = target.export(program, tmp_path / "m.onnx", OPTIONS).notes
    assert note.endswith(", from the exported program")
    run = target.load(tmp_path / "m.onnx", OPTIONS).run
    for size in (3, 6, 9):
        y = torch.randn(size, 2)
        assert torch.equal(run((y,))[0], model(y))


class Distances(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cdist(x[::2], y)


class Guesses(torch.nn.Module):
    """A branch on values, which torch.export does not capture."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cdist(x[::2], y) if x.sum() > 0 else x[::2] @ y.T


class Scripted(torch.nn.Module):
    """TorchScript inside a module: torch.export rejects it, and a trace keeps its branch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.jit.script(Chooses())

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.inner(x[::2]) @ y.T


class Chooses(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if bool(x.sum() > 0) else -x


def _of_two(model: torch.nn.Module) -> Program:
    """Return a program with two inputs whose output's first dimension is an expression; not every model is captured."""
    torch.manual_seed(0)
    example = (torch.rand(4, 3), torch.rand(5, 3))
    module = FlatModule(model.eval(), flatten_inputs(model, example)).eval()
    contract = Contract(
        "of_two",
        (TensorSpec("x", "float32", ("rows", 3)), TensorSpec("y", "float32", ("columns", 3))),
        (TensorSpec("distances", "float32", ("(rows+1)//2", "columns")),),
        {"rows": Range(2, 9), "columns": Range(2, 9)},
    )
    return Program(contract, "cpu", lambda: module, lambda: example, None)


@pytest.mark.parametrize("model", [Distances(), Scripted()], ids=["not translated", "not captured"])
def test_onnx_falls_back_to_the_older_exporter(
    model: torch.nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnx

    monkeypatch.setattr(_onnx_translations, "table", lambda *_: {})  # torch alone has no translation of cdist
    target, program = targets.get("onnx"), _of_two(model)
    note, *_ = target.export(program, tmp_path / "m.onnx", OPTIONS).notes
    why = "torch.export: " if isinstance(model, Scripted) else "No ONNX function found"
    assert re.match(rf"opset \d+, from a trace, by torch's older exporter, because the newer one fails: .*{why}", note)
    run = target.load(tmp_path / "m.onnx", OPTIONS).run
    for rows, columns, sign in ((2, 7, 1), (9, 2, 1), (5, 5, -1)):
        x, y = sign * torch.rand(rows, 3), torch.rand(columns, 3)
        with torch.no_grad():
            torch.testing.assert_close(run((x, y))[0], model(x, y))
    assert target.read_contract(tmp_path / "m.onnx") == program.contract
    shape = onnx.load(str(tmp_path / "m.onnx")).graph.input[0].type.tensor_type.shape
    assert [dim.dim_param or dim.dim_value for dim in shape.dim] == ["rows", 3]


class TakesANumber(torch.nn.Module):
    """An operator without a translation to ONNX, and a number that a trace takes from the example."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cdist(x[::2], y) * y.sum().item()


def test_onnx_rejects_a_trace_with_a_number_from_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.export captures the model, with a symbol for the number."""
    monkeypatch.setattr(_onnx_translations, "table", lambda *_: {})
    program = _of_two(TakesANumber())
    assert program.exported.graph_module is not None
    with pytest.raises(ExportError, match=r"^torch\.onnx\.export: .*No ONNX function found"):
        targets.get("onnx").export(program, tmp_path / "m.onnx", OPTIONS)


def test_onnx_rejects_a_trace_that_depends_on_values(tmp_path: Path) -> None:
    """The row shows torch.export's reason with its line. The trace would be right only on one side of the branch."""
    with pytest.raises(ExportError, match=r"^torch\.export: .*data-dependent.*test_targets\.py:\d+"):
        targets.get("onnx").export(_of_two(Guesses()), tmp_path / "m.onnx", OPTIONS)


def test_onnx_names_both_failures_with_the_newer_exporter_first(tmp_path: Path) -> None:
    class Turns(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x[::2] @ torch.linalg.eigh(y.T @ y).eigenvectors @ y.T

    refused = r"^torch\.onnx\.export: .*linalg_eigh.*; torch's older exporter: .*aten::linalg_eigh' to ONNX"
    with pytest.raises(ExportError, match=refused):
        targets.get("onnx").export(_of_two(Turns()), tmp_path / "m.onnx", OPTIONS)


@pytest.mark.parametrize("entries", [False, True], ids=["one graph", "entries"])
@pytest.mark.parametrize(("known", "cause"), [(28, "opset-too-new"), (99, "")], ids=["unknown", "not converted"])
def test_onnx_refuses_a_model_of_another_opset(
    program: Program, entries: bool, known: int, cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnx

    monkeypatch.setattr(onnx.defs, "onnx_opset_version", lambda: known)
    asked = dataclasses.replace(OPTIONS, opset=99)
    program = dataclasses.replace(program, entries={2: program} if entries else {})
    with pytest.raises(ExportError, match="made a model of opset 18, not 99") as raised:
        targets.get("onnx").export(program, tmp_path / "m.onnx", asked)
    assert raised.value.remedy == "give --opset 18, or omit it"
    assert causes.describe(raised.value, "onnx").cause == cause
    assert not (tmp_path / "m.onnx").exists()


class Mixed(torch.nn.Module):
    def forward(self, x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return (x.float() * 2).bfloat16(), n + 1, x > 0


def test_onnx_has_bfloat16_inputs_and_outputs(tmp_path: Path) -> None:
    x, n = torch.randn(2, 3).bfloat16(), torch.arange(3)
    contract = Contract("mixed", (TensorSpec("x", "bfloat16", (2, 3)), TensorSpec("n", "int64", (3,))), (), {})
    module = FlatModule(Mixed().eval(), flatten_inputs(Mixed(), (x, n))).eval()
    torch.export.save(export_program(module, (x, n), contract), tmp_path / "exported.pt2")
    program = Program(contract, "cpu", lambda: module, lambda: (x, n), tmp_path / "exported.pt2")
    target = targets.get("onnx")
    target.export(program, tmp_path / "m.onnx", OPTIONS)
    got = target.load(tmp_path / "m.onnx", OPTIONS).run((x, n))
    for one, other in zip(got, Mixed()(x, n), strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


@pytest.mark.parametrize("values", [[True, False, True], [1, 2], [0.5], []])
def test_onnx_values_become_tensors_of_the_same_dtype(values: list[Any]) -> None:
    """onnxruntime's DLPack export reports booleans as uint8."""
    import onnxruntime

    want = torch.tensor(values)
    got = _ort_cuda_graphs.tensor(onnxruntime.OrtValue.ortvalue_from_numpy(want.numpy()))
    assert got.dtype == want.dtype
    assert torch.equal(got, want)


def test_onnx_entries_with_large_weights_have_a_companion_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A protobuf file is limited to 2 GB."""
    torch.manual_seed(0)
    model, examples = torch.nn.Linear(64, 64).eval(), {size: (torch.randn(size, 64),) for size in (1, 4)}
    whole = Contract(
        "linear",
        (TensorSpec("x", "float32", ("batch", 64)),),
        (TensorSpec("y", "float32", ("batch", 64)),),
        {"batch": Range(1, 4, (1, 4))},
    )
    module = FlatModule(model, flatten_inputs(model, examples[4])).eval()
    made = Program(whole, "cpu", lambda: module, lambda: examples[4], tmp_path / "none.pt2")
    for size, example in examples.items():
        promised, file = entry(whole, size), tmp_path / f"exported-{size}.pt2"
        torch.export.save(export_program(module, example, promised), file)
        made.entries[size] = Program(promised, "cpu", lambda: module, lambda: (), file)
    target = targets.get("onnx")
    (tmp_path / "small").mkdir()
    assert target.export(made, tmp_path / "small" / "m.onnx", OPTIONS).companions == ()
    monkeypatch.setattr("exporter.targets.onnx.ONE_FILE_BYTES", 10_000)
    assert target.export(made, tmp_path / "m.onnx", OPTIONS).companions == ("m.onnx.data",)
    weights = 64 * 64 * 4
    assert (tmp_path / "m.onnx").stat().st_size < weights <= (tmp_path / "m.onnx.data").stat().st_size < 2 * weights
    assert target.read_contract(tmp_path / "m.onnx") == whole
    run = target.load(tmp_path / "m.onnx", OPTIONS).run
    for example in examples.values():
        torch.testing.assert_close(run(example)[0], model(*example), rtol=1e-4, atol=1e-5)


def test_onnx_without_a_contract(tmp_path: Path, program: Program) -> None:
    import onnx

    targets.get("onnx").export(program, tmp_path / "m.onnx", OPTIONS)
    model = onnx.load(str(tmp_path / "m.onnx"))
    del model.metadata_props[:]
    onnx.save(model, str(tmp_path / "m.onnx"))
    with pytest.raises(ArtifactError, match="carries no contract"):
        targets.get("onnx").read_contract(tmp_path / "m.onnx")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_onnx_does_not_fall_back_silently(tmp_path: Path, program: Program) -> None:
    target = targets.get("onnx")
    target.export(program, tmp_path / "m.onnx", OPTIONS)
    with pytest.raises(ArtifactError, match="onnxruntime"):
        target.load(tmp_path / "m.onnx", Options(device="cuda"))
    allowed = target.load(tmp_path / "m.onnx", Options(device="cuda", allow_cpu_fallback=True))
    assert allowed.provider() == "CPU"


@pytest.mark.parametrize("convolves", [False, True])
def test_a_package_is_frozen_only_if_that_is_correct(
    program: Program, convolves: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights are packed for their kernels only with gradients off, whatever the settings are.

    A frozen package with convolutions and dynamic sizes is compared with the program; here it cannot even be loaded.
    """
    seen: list[tuple[bool, bool]] = []
    _without_compiler(monkeypatch, lambda _, options: seen.append((torch.is_grad_enabled(), options["freezing"])))
    monkeypatch.setattr(targets.get("compile"), "_convolves", lambda graph: convolves)
    made = targets.get("compile").export(program, tmp_path / "compile.pt2", Options())
    assert seen == [(False, True), *([(True, False)] if convolves else ())]
    assert ("weights not frozen, because the frozen package is wrong or fails" in made.notes) == convolves
    targets.get("compile").export(program, tmp_path / "compile.pt2", Options(inductor=("freezing=True",)))
    assert seen[-1] == (False, True), "what the user asks for is not changed"


@pytest.mark.parametrize(
    ("fails", "reason"),
    [(True, "that fails: RuntimeError: cannot freeze"), (False, "the state would be frozen too")],
)
def test_why_a_package_with_state_is_not_frozen(
    program: Program, fails: bool, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here no package can be loaded, so none shows that it keeps its state."""

    def build(_: object, options: dict[str, Any]) -> None:
        if options["freezing"] and fails:
            raise RuntimeError("cannot freeze")

    _without_compiler(monkeypatch, build)
    monkeypatch.setattr(Program, "keeps_state", True)
    made = targets.get("compile").export(program, tmp_path / "compile.pt2", Options())
    assert f"weights not frozen, because {reason}" in "\n".join(made.notes)
    made = targets.get("compile").export(program, tmp_path / "compile.pt2", Options(inductor=("freezing=False",)))
    assert "weights not folded, because the state would be folded too" in "\n".join(made.notes)


def test_a_package_is_not_frozen_if_freezing_fails(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is that of freezing if the package cannot be made without it either, or if the user asks for it."""
    failing = [True]

    def build(_: object, options: dict[str, Any]) -> None:
        if options["freezing"] in failing:
            raise RuntimeError(f"freezing={options['freezing']} fails")

    _without_compiler(monkeypatch, build)
    path, export = tmp_path / "compile.pt2", targets.get("compile").export
    made = export(program, path, Options())
    assert "weights not frozen, because freezing fails: RuntimeError: freezing=True fails" in "\n".join(made.notes)
    with pytest.raises(RuntimeError, match="freezing=True fails"):
        export(program, path, Options(inductor=("freezing=True",)))
    failing.append(False)
    with pytest.raises(RuntimeError, match="freezing=True fails"):
        export(program, path, Options())


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        MemoryError(),
        ExportError("refused"),
        RuntimeError("CppCompileError: C++ compile error"),
        RuntimeError("CppCompileError: C++ compile error: Killed signal terminated program cc1plus"),
        RuntimeError("write failed: No space left on device"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
    ids=repr,
)
def test_what_is_not_inductors_failure_is_not_tried_again(
    program: Program, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = itertools.count(1)

    def build(*_: object) -> None:
        next(count)
        raise error

    _without_compiler(monkeypatch, build)
    with pytest.raises(type(error)):
        targets.get("compile").export(program, tmp_path / "compile.pt2", Options())
    assert next(count) == 2


@pytest.mark.parametrize(
    ("layer", "dynamic", "device", "precision", "frozen"),
    [
        (torch.nn.Linear(4, 4), True, "cuda", "fp32", True),
        (torch.nn.Conv1d(3, 3, 1), False, "cuda", "fp32", True),
        (torch.nn.Conv1d(3, 3, 1), True, "cuda", "fp32", False),
        (torch.nn.Conv1d(3, 3, 1), True, "cuda", "bf16", True),
        (torch.nn.Conv1d(3, 3, 1), True, "cpu", "fp32", True),
        (torch.nn.Conv1d(3, 3, 1), True, "cpu", "bf16", True),
        (torch.nn.Conv1d(3, 3, 1), True, "cpu", "int8", True),
    ],
)
def test_convolutions_with_dynamic_sizes_are_not_frozen_in_float32_on_a_gpu(
    layer: torch.nn.Module, dynamic: bool, device: str, precision: str, frozen: bool
) -> None:
    from exporter.targets import compile as target

    shapes = ({0: torch.export.Dim.DYNAMIC},) if dynamic else None
    graph = torch.export.export(layer.eval(), (torch.randn(2, 3, 4),), dynamic_shapes=shapes)
    settings = target._settings(graph, Options(precision=precision, device=device))
    assert settings["freezing"] == frozen
    assert settings.get("cpp.weight_prepack", True)


def test_names_and_variants_are_parsed() -> None:
    assert targets.parse(" trace , compile:default,trace") == [Variant("trace"), Variant("compile", "default")]
    assert targets.is_live(Variant("compile", "default"))
    assert not targets.is_live(Variant("compile"))
    assert not targets.is_live(Variant("trace"))
    assert targets.live("compile")
    with pytest.raises(TypeError, match="no live variants"):
        targets.live("trace")


def test_each_setting_has_a_file_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets.get("trace"), "variants", ("", "fast"))
    names = [Variant("trace").artifact, Variant("trace", "fast").artifact, Variant("trace", "fast", "int8").artifact]
    assert names == ["trace.pt", "trace-fast.pt", "trace-fast@int8.pt"]
    assert {layout.target_of(name) for name in (*names, "trace-fast@int8+head.pt")} == {"trace"}
    assert layout.target_of("compile-default.pt2") == ""


@pytest.mark.parametrize(
    ("text", "message", "remedy"),
    [
        ("tarce", "there is no target 'tarce'", "did you mean trace"),
        ("onxx", "there is no target", "did you mean onnx"),
        ("zzzzzzzz", "there is no target", "exporter targets"),
        ("AOTInductor", "there is no target", "did you mean compile?"),
        ("jit", "there is no target", "did you mean trace or script?"),
        ("compile:fast", "compile has no variant 'fast'", "compile:default"),
        ("trace:default", "trace has no variant", "it has trace"),
        ("", "no target was given", "choose from"),
        (",,", "no target was given", "trace"),
    ],
)
def test_unknown_targets_and_variants(text: str, message: str, remedy: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        targets.parse(text)
    assert remedy in raised.value.remedy


def test_a_precision_that_no_target_has_is_named() -> None:
    with pytest.raises(UsageError, match=r"^export does not support int8; it has fp32") as raised:
        targets.parse("export", ("int8",))
    assert "--precision" in raised.value.remedy


def test_targets_of_other_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("their_target")
    required = {name: getattr(targets.get("export"), name) for name in (*_plugins.VALUES, *_plugins.FUNCTIONS)}
    vars(module).update(required | {"artifact": "theirs.pt2"})
    monkeypatch.setitem(sys.modules, "their_target", module)
    point = importlib.metadata.EntryPoint("theirs", "their_target", _plugins.GROUP)
    monkeypatch.setattr(_plugins, "entry_points", lambda group: [point])
    assert "theirs" in targets.names()
    assert targets.get("theirs") is module
    assert targets.get("trace") is not module


def test_a_missing_distribution_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "version", lambda name: None if name.startswith("onnxruntime") else "1.0")
    with pytest.raises(MissingDependency, match="onnxruntime-gpu or onnxruntime is not installed") as raised:
        targets.require(targets.get("onnx"))
    assert raised.value.remedy == "pip install onnxruntime-gpu"


def test_a_missing_dependency_fails_only_its_row(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A target of another package requires a distribution that does not exist."""
    (tmp_path / "needy_target.py").write_text(
        "'''A target with a missing dependency.'''\n"
        "artifact, variants, native = 'needy.bin', ('',), False\n"
        "precisions = ('fp32',)\n"
        "needs_program = False\ncost = 1\n"
        "requires = ('a-distribution-that-nobody-has',)\n"
        "def export(program, path, options): ...\n"
        "load = read_contract = export\n"
    )
    info = tmp_path / "needy-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: needy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[exporter.targets]\nneedy = needy_target\n")
    monkeypatch.syspath_prepend(tmp_path)
    path = f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}"
    monkeypatch.setattr("exporter.runs.pipeline.Zygote", lambda *_: Zygote({"PYTHONPATH": path}))
    manifest, _ = run("tiny:mlp", "trace,needy")
    rows = {variant.name: variant for variant in manifest.variants}
    assert rows["trace"].status == "passed"
    assert (rows["needy"].status, rows["needy"].stage) == ("failed", "export")
    assert rows["needy"].reason == "a-distribution-that-nobody-has is not installed"
    assert rows["needy"].remedy == "pip install a-distribution-that-nobody-has"


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * 2 if not ctx.needs_input_grad[0] else x

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] * 2


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...


tripled = Tripled.apply  # libraries hold it so


def test_trace_supports_autograd_functions(tmp_path: Path) -> None:
    """A plain trace contains a Python call, which cannot be saved."""

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            answer: torch.Tensor = tripled(Doubled.apply(x))  # type: ignore[no-untyped-call]
            return answer

    model, example = Model(), (torch.ones(2, 4),)
    bare = torch.jit.trace(model, example, check_trace=False)
    with pytest.raises(RuntimeError, match="Could not export Python function call"):
        torch.jit.save(bare, str(tmp_path / "bare.pt"))
    flat = FlatModule(model, flatten_inputs(model, example)).eval()
    promise = Contract("m", (TensorSpec("x", "float32", ("batch", 4)),), (), {"batch": Range(1, 8)})
    made = Program(promise, "cpu", lambda: flat, lambda: example, tmp_path / "none")
    targets.get("trace").export(made, tmp_path / "trace.pt", targets.Options())
    run = targets.get("trace").load(tmp_path / "trace.pt", targets.Options()).run
    assert torch.equal(run((torch.ones(3, 4),))[0], torch.full((3, 4), 6.0))
    assert Doubled.apply(torch.ones(1)).item() == 2.0  # type: ignore[no-untyped-call]
    assert tripled == Tripled.apply


def test_a_package_always_has_the_same_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor appends its commands to them and writes uninitialized memory into them."""
    from torch._inductor import codecache

    monkeypatch.setattr(codecache, "write", codecache.write)  # restores it after the test
    _inductor.repeat_itself()
    paths = set()
    for address, byte in (("0x7f85e24a1d00", 253), ("0x7fa4a43aa020", 254)):
        numbers = [f"{byte if index == 108 else 1}L" for index in range(772)]
        code = f"f(<function fn at {address}>); opaque_metadata = {{{', '.join(numbers)}}};"
        _, path = codecache.write(code, "wrapper.cpp", specified_dir=str(tmp_path))
        paths.add(path)
        assert Path(path).read_text().startswith("f(<function fn>);")
        assert Path(path).read_text().count("0L") == 12
        with Path(path).open("a") as source:
            source.write("// Compile cmd")
    assert len(paths) == 1
