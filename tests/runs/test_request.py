"""The user's request, and the command that repeats it."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import Any

import pytest
from support.commands import recipe_path, request_for

from exporter.cli.export import _request, command
from exporter.core import environment
from exporter.core.dimensions import parse_all
from exporter.core.errors import UsageError
from exporter.core.option import settings
from exporter.core.size_range import Range
from exporter.core.tuning_records import Choice
from exporter.runs.request import Request


def parsed(line: str) -> Request:
    words = shlex.split(line)
    assert words[:2] == ["exporter", "export"]
    options = command.make_context("export", words[2:]).params
    request: Request = _request(*(options.pop(name) for name in ("model", "targets_text", "device", "out")), options)
    return request


def test_reproduce_repeats_the_request(tmp_path: Path) -> None:
    """Every option that is not the default is in the command."""
    library = tmp_path / "an op.so"
    library.touch()
    request = request_for(
        "tiny:pair",
        tmp_path / "a b",
        "trace,onnx,compile:eager@bf16",
        bench=True,
        timeout=99.5,
        time_budget=0.25,
        sizes={"batch": 4},
        sweep={"batch": (4, 8)},
        ranges={"batch": Range(2, 8, multiple_of=2), "sequence": Range(2, 9, (2, 9))},
        dynamic="batch",
        weights="random",
        seed=7,
        threads=3 + environment.usable_cpus(),
        memory_limit_gb=1.5,
        rtol=0.5,
        atol=0.25,
        min_metric=0.9,
        max_metric_loss=0.01,
        opset=18,
        allow_cpu_fallback=True,
        cuda_graphs=True,
        fullgraph=True,
        portable=True,
        keep_float=("encoder.layer.0", "head"),
        inductor=("freezing=False",),
        fallback=("aten.silu",),
        entries=("batch=1,8",),
        reuse=False,
        graph_optimization="basic",
        session_options=("execution_mode=parallel", "session.intra_op.allow_spinning=0"),
        channels_last=True,
        tune=30.0,
        ops_libs=(str(library),),
    )
    again = parsed(request.reproduce("compile:eager@bf16"))
    changed = {f.name for f in dataclasses.fields(Request) if getattr(again, f.name) != getattr(request, f.name)}
    # Those that apply only to other variants are left out, since a command for this one alone would be refused, and
    # --tune, since the command builds what was chosen.
    others = {"fallback", "entries", "graph_optimization", "session_options", "channels_last", "portable"}
    assert changed == {"variants", "out", "command", "tune", *others}
    again.validate()
    left = {one.name for one in settings(request) if getattr(request, one.name) == one.default}
    assert left == {"replace", "state", "bench", "wait_quiet"}  # all others were tried
    assert again.variants == request.variants[2:]
    assert again.out == tmp_path / "a b-again"


@pytest.mark.parametrize("tolerance", [float("inf"), float("nan"), -1.0, 1e101])
@pytest.mark.parametrize("name", ["rtol", "atol"])
def test_a_tolerance_that_cannot_be_recorded_is_refused(name: str, tolerance: float, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"{name} is ") as raised:
        request_for("tiny:pair", tmp_path, **{name: tolerance}).validate()
    assert raised.value.remedy


def test_reproduce_names_the_source_of_the_model(tmp_path: Path) -> None:
    weights, inputs = tmp_path / "weights.pt", tmp_path / "inputs.pt"
    weights.touch(), inputs.touch()
    request = request_for("tiny:pair", tmp_path / "toy")
    given = {
        "checkpoint": str(weights),
        "inputs_file": str(inputs),
        "allow_partial": True,
        "dims": parse_all(["batch=x:0", "batch=s.0:1:2..8"]),
        "leave_out": ("past_key_values", "hidden.1"),
    }
    request = dataclasses.replace(request, source=dataclasses.replace(request.source, **given), bench=False)
    assert parsed(request.reproduce("trace")).source == request.source
    assert recipe_path("tiny:pair") in shlex.split(request.reproduce("trace"))


@pytest.mark.parametrize(
    ("names", "settings", "cause"),
    [
        ("trace", {"keep_float": ("head",)}, "--keep-float applies only to"),
        ("trace", {"session_options": ("execution_mode=parallel",)}, "--session-option applies only to"),
        ("onnx", {"session_options": ("execution_mode=fast",)}, "is not an option of an onnxruntime session"),
        ("onnx", {"session_options": ("sesion.spinning=0",)}, "is not an option of an onnxruntime session"),
        ("onnx", {"session_options": ("enable_mem_pattern=False",) * 2}, "sets an option twice"),
        ("onnx", {"channels_last": True}, "--channels-last applies only to"),
        ("compile:default,trace", {"fallback": ("aten.silu",)}, "--fallback applies only to packages"),
        ("compile:default,trace", {"entries": ("batch=1",)}, "--entries applies only to packages"),
        (
            "compile",
            {"entries": ("batch=1",), "ranges": {"batch": Range(1, 8, (1, 8))}},
            "--entries and --specialize both give sizes",
        ),
        ("compile", {"portable": True, "inductor": ("cpp.march=native",)}, "changes what --portable sets"),
        ("compile@int8", {"device": "cuda", "inductor": ("freezing=True",)}, "freezing would turn"),
        ("trace@int8w", {"device": "cuda"}, "trace@int8w stores its weights for products on a CPU"),
        ("compile,onnx@fp16w+fp32:head", {"device": "cuda:1"}, "stores its weights for products on a CPU"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    names: str, settings: dict[str, Any], cause: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=cause) as raised:
        request_for("tiny:mlp", tmp_path, names, **settings).validate()
    assert raised.value.remedy


def test_the_command_of_each_row_can_be_run(tmp_path: Path) -> None:
    options = {
        "inductor": ("freezing=False",),
        "fallback": ("aten.silu",),
        "entries": ("batch=1,8",),
        "graph_optimization": "basic",
        "keep_float": ("head",),
        "session_options": ("enable_mem_pattern=False",),
        "channels_last": True,
        "tune": 5.0,
        "bench": True,
    }
    request = request_for("tiny:mlp", tmp_path, "trace,onnx,compile@bf16", **options)
    request.validate()
    for variant in request.variants:
        parsed(request.reproduce(variant.name)).validate()


def test_the_command_of_a_row_makes_what_tuning_chose(tmp_path: Path) -> None:
    """A choice of another variant is not in it."""
    chosen = {
        "onnx": (Choice("graph_optimization", ("extended",)), Choice("session_options", ("execution_mode=parallel",))),
        "trace": (Choice("channels_last", ("True",)),),
    }
    given = {"bench": True, "tune": 30.0, "chosen": chosen, "session_options": ("enable_mem_pattern=False",)}
    request = request_for("tiny:mlp", tmp_path, "trace,onnx", **given)
    onnx, trace = (parsed(request.reproduce(name)) for name in ("onnx", "trace"))
    assert onnx.graph_optimization == "extended"
    assert onnx.session_options == ("enable_mem_pattern=False", "execution_mode=parallel")
    assert (onnx.channels_last, trace.channels_last) == (False, True)
    assert (onnx.tune, trace.tune, trace.graph_optimization) == (0.0, 0.0, "all")
