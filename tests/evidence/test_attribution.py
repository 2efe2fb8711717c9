"""Tests of the attribution of a variant's time to the lines of the model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from exporter.core.profile_records import Line, LineTime, Origin, Peaks, Profiled, Step, Steps, Work, aligned
from exporter.core.timing_records import MachineLoad
from exporter.evidence import attribution

PEAKS = Peaks(1e10, {"fp32": 1e11})


def _work(name: str, module: str, place: str, operator: str = "aten::linear", flop: float = 1e6) -> Work:
    return Work(name, operator, module, place, flop, 1e4)


@pytest.fixture
def model() -> attribution.Model:
    """Return a model of three layers on the same two lines, and a head."""
    works = []
    for layer in range(3):
        works.append(_work(f"linear_{layer}", f"layers.{layer}.dense", "/home/me/net.py:7"))
        works.append(_work(f"gelu_{layer}", f"layers.{layer}", "/home/me/net.py:7", "aten::gelu", 0.0))
    works.append(_work("head", "head", "/home/me/net.py:9"))
    return attribution.Model(works, works, PEAKS)


def _steps(*origins: Origin, us: float = 100.0) -> Steps:
    made = tuple(Step("aten::linear", index * us, us, origins=(one,)) for index, one in enumerate(origins))
    return Steps(made, us * len(origins) + 50)


def test_nodes_places_and_modules_are_found(model: attribution.Model) -> None:
    found = model.keys_of(
        _steps(
            Origin(node="linear_1"),
            Origin("layers.2.dense", "net.py:7"),  # as an artifact names a file outside packages
            Origin("somewhere", "other.py:3"),
        ).steps
    )
    assert [[key for key, _ in one] for one in found] == [
        [("layers.1.dense", "/home/me/net.py:7")],
        [("layers.2.dense", "/home/me/net.py:7")],
        [("somewhere", "other.py:3")],
    ]


def test_a_place_without_a_module_takes_its_turn(model: attribution.Model) -> None:
    """A trace knows the line of each operator, but not the layer: a loop visits the layers in their order."""
    bare = Origin(place="net.py:7")
    steps = []
    for _ in range(3):
        steps += [Step("aten::linear", 0, 100, origins=(bare,)), Step("aten::gelu", 0, 10, origins=(bare,))]
    found = [keys[0][0][0] for keys in model.keys_of(steps)]
    assert found == ["layers.0.dense", "layers.0", "layers.1.dense", "layers.1", "layers.2.dense", "layers.2"]


def test_steps_without_any_origin_are_matched_by_their_operators(model: attribution.Model) -> None:
    steps = [Step("aten::linear", 0, 100), Step("aten::gelu", 0, 10), Step("aten::view", 0, 1)]
    first, second, third = model.keys_of(steps)
    assert (first[0][0][0], second[0][0][0], third) == ("layers.0.dense", "layers.0", [])


def test_a_fused_step_is_divided_by_the_work_of_its_nodes(model: attribution.Model) -> None:
    (keys,) = model.keys_of([Step("fused", 0, 100, origins=(Origin(node="linear_0"), Origin(node="gelu_0")))])
    parts = {key[0]: part for key, part in keys}
    assert sum(parts.values()) == pytest.approx(1)
    assert parts["layers.0.dense"] == pytest.approx(1e-5 / (1e-5 + 1e-6))


@pytest.mark.parametrize("latency_ms", [0.2, 0.35, 0.5])
def test_parts_add_up_to_the_latency(model: attribution.Model, latency_ms: float) -> None:
    known = _steps(Origin(node="linear_0"), Origin(node="head"))
    unknown = Step("aten::unknown", 200, 100)
    spent = attribution.spend(model, Steps((*known.steps, unknown), 350.0), latency_ms)
    assert sum(spent.ms.values()) + spent.elsewhere_ms + spent.outside_ms == pytest.approx(latency_ms)
    assert spent.elsewhere_ms > 0
    assert spent.outside_ms >= 0


def test_the_profilers_own_time_is_left_out(model: attribution.Model) -> None:
    """A step with many events lost more time to the profiler than one with a single event."""
    many = Step("aten::linear", 0, 140.0, events=11, origins=(Origin(node="linear_0"),))
    one = Step("aten::linear", 0, 100.0, origins=(Origin(node="head"),))
    spent = attribution.spend(model, Steps((many, one), 248.0), 0.2)
    first, second = spent.ms["layers.0.dense", "/home/me/net.py:7"], spent.ms["head", "/home/me/net.py:9"]
    assert first == pytest.approx(second, rel=0.05)


def test_times_on_a_gpu_are_those_of_the_kernels(model: attribution.Model) -> None:
    step = Step("aten::linear", 0, 100.0, device_us=20.0, origins=(Origin(node="head"),))
    spent = attribution.spend(model, Steps((step,), 300.0), 0.25)
    assert sum(spent.ms.values()) == pytest.approx(0.02)
    assert spent.outside_ms == pytest.approx(0.23)


def test_layers_that_are_alike_share_a_line_and_a_slow_one_stands_out(model: attribution.Model) -> None:
    origins = [Origin(node=f"linear_{layer}") for layer in range(3)]
    steps = [Step("aten::linear", 0, 1000.0 if n == 1 else 100.0, origins=(one,)) for n, one in enumerate(origins)]
    spent = attribution.spend(model, Steps(tuple(steps), 1200.0), 1.2)
    lines = attribution.lines(model, [spent])
    rows = attribution.times(lines, spent, PEAKS, "fp32")
    named = [(lines[row.line][0].module, lines[row.line][0].modules) for row in rows]
    assert named == [("layers.1.dense", 1), ("layers.*.dense", 2)]
    assert rows[0].share == pytest.approx(1000 / 1200)
    assert rows[0].compute == pytest.approx(1e6 / (rows[0].ms / 1000) / 1e11)


def test_advice_names_the_winner_and_what_limits_it(model: attribution.Model) -> None:
    steps = _steps(Origin(node="linear_0"), Origin(node="head"))
    spent = [attribution.spend(model, steps, ms) for ms in (0.2, 0.4)]
    lines = attribution.lines(model, spent)
    shown = [line for line, _ in lines]
    variants = [
        Profiled(name, "python", one.latency_ms, times=attribution.times(lines, one, PEAKS, "fp32"))
        for name, one in zip(("fast", "slow"), spent, strict=True)
    ]
    won, first = attribution.advice(shown, variants)
    assert won.startswith("fast wins 0.2 ms over slow, ")
    assert first.startswith("first to try, for fast: ")
    waiting = Profiled("host", "python", 1.0, outside_ms=0.8)
    assert "80% of its time is between operators" in attribution.advice(shown, [waiting])[0]
    assert attribution.advice(shown, []) == ()


LINES = [Line("layers.*.dense", "/home/me/net.py:7"), Line("head", "/home/me/net.py:9")]


def _variant(name: str, ms: float, other_ms: float, **given: Any) -> Profiled:
    latency = ms + other_ms + given.get("outside_ms", 0.0)
    bounds = {"compute": given.pop("compute", 0.5), "bandwidth": given.pop("bandwidth", 0.5)}
    times = (LineTime(0, ms, ms / latency, 1, **bounds), LineTime(1, other_ms, other_ms / latency, 1, **bounds))
    return Profiled(name, "python", latency, given.pop("ci95_ms", (latency, latency)), times, **given)


def test_advice_compares_with_the_next_variant_and_with_eager() -> None:
    variants = [_variant("eager", 8.0, 2.0), _variant("onnx", 2.0, 1.0), _variant("trace", 3.0, 1.0)]
    assert attribution.advice(LINES, variants)[:2] == (
        "onnx wins 1 ms over trace, 100% of it in layers.*.dense, net.py:7",
        "onnx wins 7 ms over eager, 86% of it in layers.*.dense, net.py:7",
    )
    variants[1] = replace(variants[1], ci95_ms=(2.5, 4.5))
    assert attribution.advice(LINES, variants)[0].startswith("onnx and trace cannot be told apart")
    mixed = attribution.advice(LINES, [_variant("onnx", 2.0, 2.0), _variant("trace", 4.0, 1.0)])
    assert mixed[0].startswith("onnx wins 1 ms over trace: 2 ms in layers.*.dense, net.py:7, less")


def test_advice_is_in_doubt_if_the_machine_was_busy() -> None:
    """Intervals are widened by the share of the machine that was lost, as in the report."""
    variants = [_variant("eager", 8.0, 2.0), _variant("onnx", 2.0, 1.0), _variant("trace", 3.0, 1.0)]
    busy = MachineLoad(cpus=2, others=0.2, steal=0.0, throttled=0.0, hot=0, load=3.0)
    near, far, first = attribution.advice(LINES, variants, busy=busy)
    assert near == (
        "onnx and trace cannot be told apart: the 95% intervals of their latencies, widened because the machine was "
        "busy, overlap"
    )
    assert far.startswith("onnx seems to win 7 ms over eager, 86% of it in layers")
    assert first.startswith("first to try, for onnx (in doubt, because the machine was busy): ")
    assert "seems to win 1 ms over trace" in attribution.advice(LINES, variants, busy=replace(busy, others=0.12))[0]


@pytest.mark.parametrize(
    ("variant", "said"),
    [
        (_variant("trace", 8, 2, compute=0.9), "90% of the FLOP rate: a lower precision, --precision bf16 or --preci"),
        (_variant("trace@bf16", 8, 2, compute=0.9), "of the FLOP rate: a lower precision, --precision int8"),
        (_variant("trace@int8", 8, 2, bandwidth=1.7), "100% of the bandwidth: only a smaller model takes less"),
        (_variant("trace", 8, 2, outside_ms=9.0), "47% of its time is between operators"),
        (_variant("trace", 8, 2, copy_ms=6.0), "copies take 60%"),
        (
            _variant("trace", 8, 2, compute=0.1, bandwidth=0.2),
            "takes 8 ms (80%), of which its work explains 20%; eager",
        ),
        (_variant("trace", 8, 2, fallbacks=("aten::sort",)), "layers.*.dense, net.py:7, which takes 8 ms (80%)"),
    ],
)
def test_what_to_try_first_is_what_may_save_most(variant: Profiled, said: str) -> None:
    eager = replace(_variant("eager", 3.0, 20.0), latency_ms=23.0)
    *_, first = found = attribution.advice(LINES, [eager, variant])
    assert first.startswith(f"first to try, for {variant.name}: ")
    assert said in first
    assert any("no kernel of its own for aten::sort" in one for one in found) == bool(variant.fallbacks)


def test_precisions_that_the_device_lacks_are_not_proposed() -> None:
    near = _variant("trace", 8, 2, compute=0.9)
    assert attribution.advice(LINES, [near], lower=("int8",))[-1].endswith("a lower precision, --precision int8")
    assert "only a smaller model" in attribution.advice(LINES, [near], lower=())[-1]


def test_names_are_aligned_in_order() -> None:
    assert aligned(["a", "b", "c"], ["a", "x", "c"]) == [0, None, 2]


def test_a_line_counts_more_than_the_name_of_a_node(model: attribution.Model) -> None:
    """ONNX numbers the nodes of a decomposed program again."""
    (keys,) = model.keys_of([Step("Gemm", 0, 100, origins=(Origin("head", "net.py:9", "linear_0"),))])
    assert keys[0][0] == ("head", "/home/me/net.py:9")


def test_the_model_itself_is_a_module() -> None:
    works = [_work("fc", "fc", "/m.py:3"), _work("relu", "", "/m.py:3", "aten::relu", 0.0)]
    model = attribution.Model(works, works, PEAKS)
    (keys,) = model.keys_of([Step("aten.relu.default", 0, 100, origins=(Origin("", "m.py:3"),))])
    assert keys[0][0] == ("", "/m.py:3")
    (keys,) = model.keys_of([Step("aten.relu.default", 0, 100, origins=(Origin(place="m.py:3"),))])
    assert keys[0][0] == ("", "/m.py:3")


def test_files_of_one_name_are_told_apart_by_the_module() -> None:
    works = [_work("a", "first", "/a/net.py:7"), _work("b", "second", "/b/net.py:7")]
    model = attribution.Model(works, works, PEAKS)
    origins = [Origin("second", "net.py:7"), Origin("first", "net.py:7"), Origin(place="net.py:7")]
    found = [keys[0][0] for keys in model.keys_of([Step("x", 0, 1, origins=(one,)) for one in origins])]
    assert found == [("second", "/b/net.py:7"), ("first", "/a/net.py:7"), ("", "net.py:7")]
