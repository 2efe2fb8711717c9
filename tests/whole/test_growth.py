"""`benchmarks/growth.py`: the fitted slopes, and the tables from points made by hand."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import growth


def test_slope_of_a_power_is_its_exponent() -> None:
    slope = growth.fit([1, 4, 16], [5, 10, 20])
    assert slope == pytest.approx((0.5, 0.5, 0.5, 0.5))
    assert "faster" not in str(slope)
    assert str(growth.fit([1, 2, 4], [1, 4, 16])) == "2.00 (2.00…2.00), last 2.00, faster than linear"


def test_interval_is_that_of_least_squares() -> None:
    # By hand: log2 costs 0, 2, 2 against 0, 1, 2 have the slope 1 and residuals -1/3, 2/3, -1/3.
    slope = growth.fit([1, 2, 4], [1, 4, 4])
    margin = 12.706 * (2 / 3 / 2) ** 0.5
    assert slope == pytest.approx((1, 1 - margin, 1 + margin, 0))


def test_uncertain_slope_is_not_marked() -> None:
    assert "faster" not in str(growth.fit([1, 2, 4], [1, 4, 64]))


def point(layers: int, **costs: float) -> dict[str, Any]:
    about = {"machine": {"cpus": "2", "cpu": "A Fine CPU", "torch": "2.14.1"}, "date": "2026-01-02", "failed": []}
    sizes = {"name": f"l{layers}", "layers": layers, "axes": ["layers"], "load": [0.5, 1.5]}
    return about | sizes | {"costs": {"trace": costs, "onnx": {}}}


def test_table_has_slopes_and_values() -> None:
    text = growth.render([point(2, load_s=0.5), point(4, load_s=1.0), point(8, load_s=2.0)])
    assert "2 cores of A Fine CPU, torch 2.14.1, load 0.5 to 1.5, 2026-01-02" in text
    assert "| load, s | 1.00 (1.00…1.00), last 1.00 |  |  |  |" in text
    assert "| cost | route | 2 | 4 | 8 |" in text
    assert "| load, s | trace | 0.5 | 1 | 2 |" in text


def test_figure_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    import _growth_figure

    lines = growth.series([point(2, load_s=0.5), point(4, load_s=1.0)])
    _growth_figure.draw(lines, growth.COSTS, "measured", tmp_path / "growth.svg")
    assert (tmp_path / "growth.svg").read_text().startswith("<?xml")


def test_points_of_the_axes() -> None:
    arguments = argparse.Namespace(quick=False, parameters="0.02,0.1", axes=None)
    found = growth.sweeps(arguments)
    assert list(found[growth.MILLIONS]) == ["w640_l4_b1_s16", "w1472_l4_b1_s16"]
    assert list(found["batch"]) == ["w256_l2_b1_s16", "w256_l2_b4_s16", "w256_l2_b16_s16", "w256_l2_b64_s16"]
    assert next(iter(found["layers"])) == next(iter(found["batch"]))


def test_a_point_on_several_axes_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[tuple[str, str]] = []

    def add(point: dict[str, Any], route: str, arguments: argparse.Namespace) -> None:
        measured.append((point["name"], route))
        if route == growth.ROUTES[0]:  # the others fail
            point["costs"][route] = {}

    monkeypatch.setattr(growth, "add", add)
    given = {"out": tmp_path, "quick": True, "parameters": None, "axes": None, "render": False}
    found = growth.collect(argparse.Namespace(**given, resume=False))
    assert max(len(point["axes"]) for point in found.values()) > 1
    assert sorted(measured) == sorted({(name, route) for name in found for route in growth.ROUTES})
    measured.clear()
    growth.collect(argparse.Namespace(**given, resume=True))
    assert sorted(measured) == sorted((name, route) for name in found for route in growth.ROUTES[1:])


def test_axes_are_chosen() -> None:
    found = growth.sweeps(argparse.Namespace(quick=True, parameters=None, axes="parameters,batch"))
    assert list(found) == [growth.MILLIONS, "batch"]
    with pytest.raises(SystemExit, match="no axis is called heads; the axes are parameters,layers,batch,sequence"):
        growth.sweeps(argparse.Namespace(quick=True, parameters=None, axes="heads"))
