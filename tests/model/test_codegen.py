"""TorchScript: loading it, and writing it."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from exporter.core.errors import ArtifactError, ExportError
from exporter.model.torchscript import codegen


class Scripted(torch.nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: torch.Tensor) -> object:
        if self.kind == "one":
            return x
        return [x, x] if self.kind == "list" else (x, x, x)


@pytest.mark.parametrize(("kind", "count"), [("one", 1), ("tuple", 3)])
def test_every_kind_of_output_becomes_a_tuple(tmp_path: Path, kind: str, count: int) -> None:
    traced = torch.jit.trace(Scripted(kind), torch.ones(1))
    torch.jit.save(traced, str(tmp_path / "m.pt"))
    outputs = codegen.load(tmp_path / "m.pt", "cpu")((torch.ones(3),))
    assert isinstance(outputs, tuple)
    assert len(outputs) == count


def test_a_list_of_outputs_becomes_a_tuple(tmp_path: Path) -> None:
    traced = torch.jit.trace(Scripted("list"), torch.ones(1), strict=False)
    torch.jit.save(traced, str(tmp_path / "m.pt"))
    assert isinstance(codegen.load(tmp_path / "m.pt", "cpu")((torch.ones(3),)), tuple)


def test_a_file_that_is_not_torchscript(tmp_path: Path) -> None:
    (tmp_path / "m.pt").write_bytes(b"nothing of the kind")
    with pytest.raises(ArtifactError, match=r"m\.pt is not TorchScript"):
        codegen.load(tmp_path / "m.pt", "cpu")
    with pytest.raises(ArtifactError):
        codegen.load(tmp_path / "missing.pt", "cpu")


class Bakes(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if bool(x.sum() > 0) else -x


def test_tracer_warnings_name_their_line_once() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            torch.jit.trace(Bakes(), torch.ones(1), check_trace=False)
        warnings.warn("something else", stacklevel=1)
    (said,) = codegen.tracer_warnings(caught)
    assert "test_codegen.py:" in said.place
    assert said.message.startswith("Converting a tensor to a Python")


def module(**tensors: torch.Tensor) -> torch.nn.Module:
    made = torch.nn.Module()
    for name, tensor in tensors.items():
        made.register_buffer(name, tensor)
    return made


def test_a_module_defined_by_its_source() -> None:
    source = "def forward(self, x: Tensor) -> Tensor:\n    return torch.ops.aten.add(x, self.b)\n"
    defined = codegen.define(module(b=torch.ones(2)), source)
    assert torch.equal(defined(torch.ones(2)), torch.full((2,), 2.0))
    again = codegen.define(module(b=torch.ones(2)), source.replace("add", "sub"))
    assert torch.equal(again(torch.ones(2)), torch.zeros(2))
    with pytest.raises(RuntimeError, match='File "<string>", line 2'):
        codegen.define(module(), source)


def test_attributes_whose_names_are_not_identifiers() -> None:
    assert codegen.attribute("layers.weight") == "self.layers.weight"
    assert codegen.attribute("layers.0.weight") == 'getattr(self.layers, "0").weight'
    assert codegen.attribute("in.a-b") == 'getattr(getattr(self, "in"), "a-b")'


TYPES = {
    "int": torch._C.IntType.get(),
    "float": torch._C.FloatType.get(),
    "bool": torch._C.BoolType.get(),
    "number": torch._C.NumberType.get(),
    "str": torch._C.StringType.get(),
    "Device": torch._C.DeviceObjType.get(),
    "List[int]": torch._C.ListType(torch._C.IntType.get()),
    "List[float]": torch._C.ListType(torch._C.FloatType.get()),
    "Optional[float]": torch._C.OptionalType(torch._C.FloatType.get()),
    "Dict[str, int]": torch._C.DictType(torch._C.StringType.get(), torch._C.IntType.get()),
    "Tuple[int, float]": torch._C.TupleType([torch._C.IntType.get(), torch._C.FloatType.get()]),
}


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        *((0, "int"), (True, "int"), (-(2**63), "int"), (2**63 - 1, "int"), (1, "float"), (True, "float")),
        *(
            (0.1, "float"),
            (1e-45, "float"),
            (-3.4028234663852886e38, "float"),
            (math.inf, "float"),
            (-math.inf, "float"),
        ),
        *((True, "bool"), (2.5, "number"), (7, "number"), ('it\'s "this"\n', "str"), (torch.device("cpu"), "Device")),
        *(([], "List[int]"), ([1, -2], "List[int]"), ((1, 2), "List[float]"), ([], "List[float]")),
        *((1, "Optional[float]"), ({"a": 1}, "Dict[str, int]"), ({}, "Dict[str, int]"), ((1, 2), "Tuple[int, float]")),
    ],
)
def test_literals_keep_their_value(value: Any, kind: str) -> None:
    literal = codegen.literal(value, TYPES[kind])
    source = f"def forward(self) -> {kind}:\n    return {literal}\n"
    got = codegen.define(module(), source)()
    assert got == (list(value) if kind.startswith("List") else value)
    if kind in ("int", "float", "bool"):
        assert type(got).__name__ == kind


def test_torch_literals() -> None:
    number = TYPES["number"]
    values = (None, torch.float16, torch.strided, torch.channels_last, 1 + 2j)
    texts = ("None", "torch.float16", "torch.strided", "torch.channels_last", "complex(1.0, 2.0)")
    assert tuple(codegen.literal(value, number) for value in values) == texts
    assert codegen.literal("x", number, lambda value, kind: f"<{value}>") == "<x>"
    with pytest.raises(ExportError, match="no literal for object"):
        codegen.literal(object(), number)


@pytest.mark.parametrize(("kind", "dtype"), [("bool", torch.bool), ("int", torch.int64), ("float", torch.float32)])
def test_a_number_as_a_tensor(kind: str, dtype: torch.dtype) -> None:
    source = f"def forward(self) -> Tensor:\n    return {codegen.number_tensor('1', kind)}\n"
    tensor = codegen.define(module(), source)()
    assert (tensor.dtype, tensor.shape, tensor.item()) == (dtype, (), 1)
