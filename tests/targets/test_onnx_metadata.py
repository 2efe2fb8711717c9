"""Reading a property of an ONNX model, without the model."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from exporter.targets import _onnx_metadata

LARGEST = 1 << 20


def model(**properties: str) -> onnx.ModelProto:
    """Return a model with a field of every kind before and after its properties."""
    weight = onnx.numpy_helper.from_array(onnx.numpy_helper.np.ones(5000, "float32"), "w")
    graph = onnx.helper.make_graph([], "graph", [], [onnx.helper.make_tensor_value_info("w", 1, [5000])], [weight])
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], producer_name="tests")
    onnx.helper.set_model_props(made, properties)
    made.model_version = 1 << 62
    made.functions.add(name="f", domain="d")
    return made


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_a_property_is_found(tmp_path: Path) -> None:
    long = "äöü" * 5000
    file = write(tmp_path / "m.onnx", model(first="", second=long, third="3").SerializeToString())
    found = {key: _onnx_metadata.find(file, key, LARGEST) for key in ("first", "second", "third", "fourth", "")}
    assert found == {"first": b"", "second": long.encode(), "third": b"3", "fourth": None, "": None}


def test_fields_of_other_kinds_are_skipped(tmp_path: Path) -> None:
    """A later version of the format may have fields of fixed sizes."""
    more = b"\xa1\x06" + b"\x72" * 8 + b"\xa5\x06" + b"\x72" * 4 + b"\xa0\x06\xff\xff\x03"
    file = write(tmp_path / "m.onnx", more + model(key="value").SerializeToString())
    assert onnx.load(str(file)).metadata_props[0].value == "value"
    assert _onnx_metadata.find(file, "key", LARGEST) == b"value"


@pytest.mark.parametrize(
    "data", [b"nothing of the kind", b"\x3a", b"\x3a\x05four", b"\xff" * 20, b"\x0a" + b"\xff" * 9]
)
def test_what_is_no_model_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(ValueError, match=r"it is not a (whole )?protobuf message"):
        _onnx_metadata.find(write(tmp_path / "m.onnx", data), "key", LARGEST)


def test_a_model_that_was_cut_is_refused(tmp_path: Path) -> None:
    whole = model(key="value").SerializeToString()
    for size in range(10, len(whole) - 1, 997):
        with pytest.raises(ValueError, match=r"it is not a (whole )?protobuf message"):
            _onnx_metadata.find(write(tmp_path / "m.onnx", whole[:size]), "key", LARGEST)


def test_a_huge_property_is_not_read(tmp_path: Path) -> None:
    file = write(tmp_path / "m.onnx", model(key="v" * 1000).SerializeToString())
    assert _onnx_metadata.find(file, "key", 1100) == b"v" * 1000
    with pytest.raises(ValueError, match="more than 900 bytes"):
        _onnx_metadata.find(file, "key", 900)
