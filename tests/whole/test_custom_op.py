"""The example of an operator in C++ is built in both ways, computes the right values, and goes through every target."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from support.commands import NATIVE, ROOT, Run

from exporter import targets as routes

EXAMPLE = ROOT / "examples" / "custom_op"
COMPILER = os.environ.get("CXX") or shutil.which("c++")

needs_a_compiler = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler was found (CXX, c++)")
needs_cmake = pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake was not found")
pytestmark = [needs_a_compiler, needs_cmake]

Operator = Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]


def command(*words: object, folder: Path = EXAMPLE) -> str:
    """Run a command in a folder and return its output. Fails with the output if the command fails."""
    environ = {name: value for name, value in os.environ.items() if name != "TORCH_CUDA_ARCH_LIST"}
    done = subprocess.run(
        [str(word) for word in words], cwd=folder, env=environ, text=True, capture_output=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that CMake builds for the CPU. Loaded into this process too."""
    build = tmp_path_factory.mktemp("custom_op")
    command("cmake", "-S", EXAMPLE, "-B", build, "-DCUSTOM_OP_CUDA=OFF", f"-DPython3_EXECUTABLE={sys.executable}")
    command("cmake", "--build", build)
    torch.ops.load_library(str(build / "rms_norm.so"))
    return build / "rms_norm.so"


@pytest.fixture(scope="module")
def model(library: Path) -> ModuleType:
    """The example's model.py. It registers the fake kernel, so the operator must exist."""
    spec = importlib.util.spec_from_file_location("custom_op_model", EXAMPLE / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def rms_norm(model: ModuleType) -> Operator:
    operator: Operator = torch.ops.example.rms_norm.default
    return operator


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(5,), (1, 1), (3, 7, 768), (2, 40_000), (0, 4), (3, 0)])
def test_values(model: ModuleType, rms_norm: Operator, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    given, weight = torch.randn(shape).to(dtype), torch.rand(shape[-1]).to(dtype)
    made = rms_norm(given, weight, 1e-6)
    wanted = model.composed_rms_norm(given.double(), weight.double(), 1e-6)
    assert (made.dtype, made.shape) == (dtype, given.shape)
    torch.testing.assert_close(made.double(), wanted, rtol=8 * torch.finfo(dtype).eps, atol=1e-7)


def test_tensors_that_are_not_contiguous(rms_norm: Operator) -> None:
    given, weight = torch.randn(6, 3, 4).transpose(0, 2), torch.rand(12)[::2]
    made = rms_norm(given, weight, 1e-6)
    assert torch.equal(made, rms_norm(given.contiguous(), weight.contiguous(), 1e-6))
    assert made.is_contiguous()


@pytest.mark.parametrize(
    ("given", "weight", "message"),
    [
        (torch.tensor(1.0), torch.ones(1), "input has no dimension to normalize"),
        (torch.ones(2, 3), torch.ones(2), "weight must have one dimension of 3, the last size of input; it has 1"),
        (torch.ones(2, 3), torch.ones(1, 3), "weight must have one dimension of 3, the last size of input; it has 2"),
        (torch.ones(2, 3), torch.ones(3).double(), "input is Float and weight is Double; they must have the same type"),
        (torch.ones(2, 3).long(), torch.ones(3).long(), "Long is not supported: use Float, Double, Half or BFloat16"),
    ],
)
def test_wrong_inputs(rms_norm: Operator, given: torch.Tensor, weight: torch.Tensor, message: str) -> None:
    with pytest.raises(RuntimeError, match=f"rms_norm: {message}"):
        rms_norm(given, weight, 1e-6)


def test_the_fake_kernel_agrees_with_the_real_one(rms_norm: Operator) -> None:
    for given in (torch.randn(4, 3), torch.randn(3, 4).t(), torch.randn(0, 3)):
        torch.library.opcheck(rms_norm, (given, torch.rand(3), 1e-6), test_utils=("test_schema", "test_faketensor"))


def test_every_target(run: Run, library: Path) -> None:
    manifest, _ = run(f"{EXAMPLE / 'model'}:fused", "trace,script,compile,export,onnx", ops_libs=(str(library),))
    rows = {variant.name: variant for variant in manifest.variants}
    onnx = rows.pop("onnx")
    assert onnx.reason.startswith("There is no translation to ONNX for the custom operator example.rms_norm (")
    assert {name: row.reason for name, row in rows.items() if row.status != "passed"} == {}
    assert list(rows) == ["trace", "script", "compile", "export"]
    for row in rows.values():
        assert row.contract is not None
        assert row.contract.ops == ("example",)
        assert [s.session for s in row.sessions] == (["python", "native"] if NATIVE else ["python"])
        assert routes.get(row.target).native
        assert all(s.parity is not None and s.parity.cases > 8 for s in row.sessions)


def test_the_library_of_cpp_extension(library: Path, tmp_path: Path) -> None:
    folder = tmp_path / "custom_op"
    shutil.copytree(EXAMPLE, folder)  # build_ext --inplace writes into it
    command(sys.executable, "-W", "ignore", "setup.py", "--quiet", "build_ext", "--inplace", folder=folder)
    code = (
        "import torch; torch.ops.load_library('rms_norm.so')\n"
        "print(torch.ops.example.rms_norm(torch.tensor([3., 4.]), torch.ones(2), 0.).square().sum().item())\n"
    )
    assert float(command(sys.executable, "-c", code, folder=folder)) == pytest.approx(2.0)
