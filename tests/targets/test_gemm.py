"""Matrix products by the micro-kernel of packages: right at every size, for AVX-512 and for AVX2."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from support import packages
from torch import nn
from torch._inductor.cpu_vec_isa import pick_vec_isa

from exporter.core import environment
from exporter.targets import _amx, _gemm, _int8, _stored_products

ROWS = (1, 2, 5, 6, 7, 13, 14, 15, 28, 29, 47)


class Odd(nn.Module):
    """Linear layers whose sizes are no multiples of the kernel's blocks, one of them narrow, one with blocks to add."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.narrow = nn.Linear(37, 60), nn.Linear(60, 1, bias=False)
        self.wide, self.back = nn.Linear(60, 3000), nn.Linear(3000, 60)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = nn.functional.gelu(self.first(x))
        return self.narrow(y), y + self.back(self.wide(y).relu())


def package(module: nn.Module, folder: Path, rows: object, **settings: object) -> Path:
    with torch.no_grad():
        program = torch.export.export(module, (torch.randn(3, 37),), dynamic_shapes=({0: rows},))
    return packages.build(program, folder / "net.pt2", **{"freezing": True, **settings})


@pytest.mark.parametrize("bits", [512, 256])
def test_every_number_of_rows_is_right(bits: int, tmp_path: Path) -> None:
    packages.require_vectors(bits)
    module = Odd().eval()
    with torch.no_grad(), _gemm.compiled():
        made = package(module, tmp_path, torch.export.Dim("rows", max=64), **{"cpp.simdlen": bits})
    assert packages.sources(made).count("multiply_all(packed") == 2 * 3, "the kernel is used, but not for one column"
    run = torch._inductor.aoti_load_package(str(made))
    module.double().requires_grad_(False)
    for rows in ROWS:
        x = torch.randn(rows, 37)
        for got, exact in zip(run(x), module(x.double()), strict=True):
            torch.testing.assert_close(got.double(), exact, rtol=1e-6, atol=1e-6)


def test_fixed_sizes_use_it_too(tmp_path: Path) -> None:
    module = Odd().eval()
    with torch.no_grad(), _gemm.compiled():
        made = package(module, tmp_path, None)
    assert "multiply_all(packed" in packages.sources(made)
    x = torch.randn(3, 37)
    torch.testing.assert_close(tuple(torch._inductor.aoti_load_package(str(made))(x)), module(x))


def test_without_vector_instructions_libraries_multiply(tmp_path: Path) -> None:
    module = Odd().eval()
    with torch.no_grad(), _gemm.compiled():
        made = package(module, tmp_path, None, **{"cpp.simdlen": 1})
    assert "multiply_all" not in packages.sources(made)
    assert "linear" in packages.sources(made)


def test_a_template_without_its_variables_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_gemm, "NEEDED", ("not_a_variable",))
    module = Odd().eval()
    with torch.no_grad(), _gemm.compiled():
        made = package(module, tmp_path, None)
    assert "multiply_all" not in packages.sources(made)


class Selected(nn.Module):
    """Multiplies the rows that a mask selects, perhaps none."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(37, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x[x[:, 0] > 0])


@pytest.mark.skipif(torch.__version__.startswith("2.11"), reason="torch 2.11 cannot pack the weight of such a layer")
def test_no_rows_at_all(tmp_path: Path) -> None:
    module = Selected().eval()
    with torch.no_grad(), _gemm.compiled():
        made = package(module, tmp_path, torch.export.Dim("rows", max=64))
    assert "multiply_all" not in packages.sources(made)
    run = torch._inductor.aoti_load_package(str(made))
    assert run(-torch.ones(3, 37)).shape == (0, 64)
    x = torch.randn(5, 37)
    torch.testing.assert_close(run(x), module(x), rtol=1e-5, atol=1e-6)


class Turned(nn.Module):
    """Multiplies a transposed input by a weight in float16."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.register_buffer("small", torch.randn(64, 37).half())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = _stored_products.product()(x.t(), self.small, None)
        return product


@pytest.mark.parametrize(("bits", "usable"), [(512, True), (256, True), (256, False), (1, True)])
def test_rows_that_are_not_contiguous(bits: int, usable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages.require_vectors(bits)
    if not usable:
        monkeypatch.setattr(_gemm, "NEEDED", ("not_a_variable",))
    module, x = Turned().eval(), torch.randn(37, 5)
    with torch.no_grad(), _gemm.compiled(), _stored_products.compiled():
        program = torch.export.export(module, (x,))
        made = packages.build(program, tmp_path / "net.pt2", **{"freezing": True, "cpp.simdlen": bits})
    assert ("multiply_all(packed" in packages.sources(made)) == (usable and bits > 1)
    torch.testing.assert_close(torch._inductor.aoti_load_package(str(made))(x), module(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("blocks", ["1,2,7", "2,1,30"])
def test_every_blocking_is_right(blocks: str, tmp_path: Path) -> None:
    module = Odd().eval()
    with torch.no_grad(), _gemm.compiled():
        program = torch.export.export(module, (torch.randn(47, 37),))
        settings = {"freezing": True, "cpp.gemm_cache_blocking": blocks}
        made = packages.build(program, tmp_path / "net.pt2", **settings)
    assert "multiply_all(packed" in packages.sources(made)
    x = torch.randn(47, 37)
    torch.testing.assert_close(tuple(torch._inductor.aoti_load_package(str(made))(x)), module(x), rtol=1e-5, atol=1e-6)


def test_a_cpu_whose_caches_are_unknown_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _gemm.usable()
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    assert not _gemm.usable()


def test_nothing_stays_changed() -> None:
    from torch._inductor import lowering
    from torch._inductor.codegen import cpp_micro_gemm

    configs = dict(cpp_micro_gemm.micro_gemm_configs)
    table, caches = dict(lowering.lowerings), torch.cpu.get_capabilities()

    def fail() -> None:
        with _gemm.compiled():
            assert set(cpp_micro_gemm.micro_gemm_configs) - set(configs)
            assert lowering.lowerings != table
            raise KeyError("as an export may")

    with pytest.raises(KeyError):
        fail()
    assert torch.cpu.get_capabilities() == caches
    assert cpp_micro_gemm.micro_gemm_configs == configs
    assert lowering.lowerings == table


class Bytes(nn.Module):
    """Two linear layers side by side: one has an activation, the other a shortcut."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(64, columns), nn.Linear(columns, 64)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return nn.functional.gelu(self.first(x)), self.second(y) + x


@pytest.mark.filterwarnings("ignore:To copy construct:UserWarning")  # from inductor
@pytest.mark.parametrize(
    ("columns", "vnni", "blocks", "served"),
    [
        (600, True, "", 2),
        (600, True, "1,2,7", 2),
        (600, True, "2,1,30", 2),
        (640, True, "", 2),  # of a depth that tiles of AMX fill
        (600, False, "", 0),
        (33, True, "", 0),  # too narrow for a block, and of a depth that the instruction lacks
    ],
)
def test_rows_in_bytes(
    columns: int, vnni: bool, blocks: str, served: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums of products of bytes are exact, so the kernel and torch agree but for the rounding of the scales."""
    if _gemm.vnni() is None or not isinstance(pick_vec_isa(), _gemm.vnni()):
        pytest.skip("this CPU has no VNNI, or this version of torch does not know it")
    if not vnni:
        monkeypatch.setattr(_gemm, "vnni", lambda: None)
    module, data = Bytes(columns).eval(), (torch.randn(47, 64), torch.randn(47, columns))
    with torch.no_grad(), _gemm.compiled():
        quantized = _int8.pt2e(torch.export.export(module, data).module(check_guards=False), [data])
        settings = {"freezing": True, "cpp.gemm_cache_blocking": blocks or None}
        made = packages.build(torch.export.export(quantized, data), tmp_path / "net.pt2", **settings)
        wanted = quantized(*data)
    assert "result += " not in packages.sources(made), "of the template's reference kernel, which is slow"
    assert packages.sources(made).count("multiply_all(packed, &(") == 2 * served
    got = torch._inductor.aoti_load_package(str(made))(*data)
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:To copy construct:UserWarning")  # from inductor
@pytest.mark.skipif("avx2" not in environment.cpu_flags(), reason="this CPU has no AVX2")
@pytest.mark.parametrize(("most", "blocks", "served"), [(300, "", True), (math.inf, "1,2,7", True), (299, "", False)])
def test_rows_in_7_bits_with_avx2(most: float, blocks: str, served: bool, tmp_path: Path) -> None:
    module, rows = Bytes(600).eval(), torch.export.Dim("rows", min=1, max=300)
    data, shapes = (torch.randn(300, 64), torch.randn(300, 600)), ({0: rows}, {0: rows})
    with torch.no_grad(), _gemm.compiled(most):
        graph = torch.export.export(module, data, dynamic_shapes=shapes).module(check_guards=False)
        quantized = _int8.pt2e(graph, [data], narrow=True)
        program = torch.export.export(quantized, data, dynamic_shapes=(shapes,))
        settings = {"freezing": True, "cpp.simdlen": 256, "cpp.gemm_cache_blocking": blocks or None}
        made = packages.build(program, tmp_path / "net.pt2", **settings)
    assert packages.sources(made).count("multiply_all(packed, &(") == (4 if served else 0)
    loaded = torch._inductor.aoti_load_package(str(made))
    for count in (1, 2, 5, 6, 7, 13, 300):
        given = tuple(one[:count] for one in data)
        with torch.no_grad():
            wanted = quantized(*given)
        for one, other in zip(loaded(*given), wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


class Chain(nn.Module):
    """Has a layer whose output is quantized where it is computed."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (self.second(self.first(x).relu()),)


@pytest.mark.filterwarnings("ignore:To copy construct:UserWarning")  # from inductor
@pytest.mark.skipif("avx2" not in environment.cpu_flags(), reason="this CPU has no AVX2")
def test_values_beyond_the_calibrated_range_are_no_worse_than_clipped(tmp_path: Path) -> None:
    """inductor clips them to 8 bits instead of 7, and sums of two products saturate."""
    module, data = Chain().eval(), (torch.randn(16, 64),)
    with torch.no_grad(), _gemm.compiled(16):
        quantized = _int8.pt2e(torch.export.export(module, data).module(check_guards=False), [data], narrow=True)
        settings = {"freezing": True, "cpp.simdlen": 256}
        made = packages.build(torch.export.export(quantized, data), tmp_path / "net.pt2", **settings)
        far = module.first.weight[:16] * 40  # large outputs
        (clipped,), (exact,) = quantized(far), module(far)
    assert "exporter_gemm_bytes" in packages.sources(made)
    (got,) = torch._inductor.aoti_load_package(str(made))(far)
    assert not torch.allclose(got, clipped, rtol=1e-3, atol=1e-3)
    assert (got - exact).norm() < (clipped - exact).norm()


@pytest.mark.filterwarnings("ignore:To copy construct:UserWarning")  # from inductor
@pytest.mark.skipif(not _amx.used(), reason="this CPU has no AMX")
@pytest.mark.parametrize("permitted", [True, False])
def test_rows_in_tiles(permitted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system does not permit tiles, the functions for VNNI compute the same."""
    request = "permitted = request()"
    assert request in _amx.DEFINITION
    if not permitted:
        monkeypatch.setattr(_amx, "DEFINITION", _amx.DEFINITION.replace(request, "permitted = false"))
    module, rows = Bytes(192).eval(), torch.export.Dim("rows", min=1, max=300)
    data = torch.randn(47, 64), torch.randn(47, 192)
    shapes = {0: rows}, {0: rows}
    with torch.no_grad(), _gemm.compiled():
        graph = torch.export.export(module, data, dynamic_shapes=shapes).module(check_guards=False)
        quantized = _int8.pt2e(graph, [data])
        program = torch.export.export(quantized, data, dynamic_shapes=(shapes,))
        made = packages.build(program, tmp_path / "net.pt2", freezing=True)
    assert packages.sources(made).count("exporter_amx::Tiles tiles(") == 2
    loaded = torch._inductor.aoti_load_package(str(made))
    for count in (1, 2, 15, 16, 17, 31, 32, 33, 48, 49, 300):
        data = torch.randn(count, 64), torch.randn(count, 192)
        with torch.no_grad():
            wanted = quantized(*data)
        for one, other in zip(loaded(*data), wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
