"""Conditions of torch.export on sizes, evaluated over the whole promised range."""

from __future__ import annotations

import torch

from exporter.core.contract_records import Contract, TensorSpec
from exporter.core.size_range import Range, Sizes
from exporter.model import guards

BASE = {"a": 8, "b": 120}
RANGES = {"a": Range(2, 40, multiple_of=2), "b": Range(1, 900)}


def test_the_nearest_violations_of_each_symbol_and_of_combinations() -> None:
    def holds(sizes: Sizes) -> bool:
        return sizes["a"] != 30 and sizes["b"] % 50 != 1 and sizes["a"] * sizes["b"] <= 9000

    alone_a, first, second, *both = guards.violations(holds, BASE, RANGES)
    assert alone_a == {"a": 30, "b": 120}
    assert (first["a"], second["a"]) == (8, 8)
    assert [one["b"] % 50 for one in (first, second)] == [1, 1]
    assert len(both) == guards.CASES
    for one in both:
        assert 9000 < one["a"] * one["b"] <= guards.FAR * 8 * 120
        assert one["a"] % 2 == 0
    assert guards.violations(lambda sizes: True, BASE, RANGES) == []
    assert guards.violations(lambda sizes: False, BASE, RANGES) == []  # the example shows nothing
    assert guards.violations(holds, BASE, {}) == []
    assert guards.violations(lambda sizes: sizes["b"] < 100, {"a": 8, "b": 2}, RANGES) == []  # costs too much


def test_both_ends_of_all_sizes_together_if_one_of_them_depends_on_several() -> None:
    specs = [TensorSpec("x", "float32", ("a", dim)) for dim in ("b", None)]
    plain, sums = (Contract("m", (one,), (), RANGES) for one in specs)
    assert guards.joint_extremes(plain, BASE) == []
    assert guards.joint_extremes(sums, {**BASE, "c": 3}) == [{"a": 2, "b": 1, "c": 3}]  # the other end costs too much
    assert guards.joint_extremes(sums, {"a": 20, "b": 300}) == [{"a": 2, "b": 1}, {"a": 40, "b": 900}]
    named = Contract("m", (TensorSpec("x", "float32", ("a", "b", "a+b")),), (), RANGES)
    assert guards.joint_extremes(named, {"a": 20, "b": 300}) == [{"a": 2, "b": 1}, {"a": 40, "b": 900}]


def test_the_range_with_the_most_sizes_around_the_example() -> None:
    def around(size: int, bounds: Range, *wrong: int) -> Range:
        return guards.around(lambda sizes: sizes["n"] not in wrong, "n", {"n": size}, bounds)

    assert around(64, Range(1, 160), *range(7, 161, 7)) == Range(64, 69)
    assert around(10, Range(1, 160)) == Range(1, 160)
    assert around(10, Range(1, 160), 11, 9) == Range(2, 160, multiple_of=2)
    assert around(12, Range(4, 40, multiple_of=4), 24) == Range(4, 20, multiple_of=4)
    assert around(1, Range(1, 9), 2) == Range(1, 1)


def test_sizes_that_depend_on_each_other_get_the_largest_ranges_that_hold_together() -> None:
    def wide(sizes: Sizes) -> bool:
        return sizes["w"] <= sizes["h"]

    base, promised = {"h": 48, "w": 40, "n": 2}, {"h": Range(40, 100), "w": Range(16, 48), "n": Range(1, 8)}
    found = guards.clashes(wide, base, promised)
    assert len(found) == guards.CLASHES
    assert all(one["h"] < one["w"] and one["n"] == 2 for one in found)
    both = {name: promised[name] for name in ("h", "w")}
    assert guards.jointly(wide, base, both) == {"h": Range(48, 100), "w": Range(16, 48)}
    assert guards.clashes(lambda sizes: True, base, promised) == []
    assert guards.clashes(wide, base, {}) == []

    def even(sizes: Sizes) -> bool:
        return (sizes["h"] + sizes["w"]) % 2 == 0

    assert guards.jointly(even, base, both) == {
        "h": Range(40, 100, multiple_of=2), "w": Range(16, 48, multiple_of=2)
    }  # fmt: skip
    assert guards.jointly(lambda sizes: sizes["h"] - sizes["w"] == 8, base, both) == {}  # one size each


def test_sizes_that_must_differ_are_kept_apart() -> None:
    """Drawn at random, two of 1024 sizes each are hardly ever equal."""

    def differ(sizes: Sizes) -> bool:
        return sizes["h"] != sizes["w"]

    base, promised = {"h": 6, "w": 9, "n": 2}, {"h": Range(2, 16), "w": Range(2, 16), "n": Range(1, 4)}
    assert guards.clashes(differ, {**base, "h": 600, "w": 900}, {"h": Range(2, 800), "w": Range(2, 1024)})
    both = {name: Range(2, 16, multiple_of=step) for name, step in (("h", 2), ("w", 1))}
    assert guards.jointly(differ, base, both) == {}  # any even height may equal a width above 9
    found = guards.kept_apart(differ, base, promised)
    assert found["n"] == promised["n"]
    assert max(found["h"].sizes) < min(found["w"].sizes)
    assert found["h"].allows(6)
    assert found["w"].allows(9)
    assert len(found["h"].sizes) * len(found["w"].sizes) > 40
    assert guards.kept_apart(lambda sizes: sizes["h"] == sizes["w"], {**base, "h": 9}, promised) == {}  # one size each

    wide = {"h": Range(64, 1080), "w": Range(64, 1920)}
    found = guards.kept_apart(differ, {"h": 480, "w": 640}, wide)
    assert max(found["h"].sizes) < min(found["w"].sizes)
    assert len(found["h"].sizes) * len(found["w"].sizes) > 500_000  # of 2 million, of which half must be left out


def test_conditions_of_a_program() -> None:
    class Even(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.shape[0] % 3 == 0 else -x

    dims = ({0: torch.export.Dim.AUTO},)
    program = torch.export.export(Even(), (torch.ones(4, 2),), dynamic_shapes=dims, strict=False)
    promised = Contract("m", (TensorSpec("x", "float32", ("n", 2)),), (), {"n": Range(2, 9)})
    holds = guards.conditions(program, promised)
    assert [size for size in range(2, 10) if not holds({"n": size})] == [3, 6, 9]
    unknown = Contract("m", (TensorSpec("x", "float32", (None, 2)),), (), {})
    assert guards.conditions(program, unknown)({})
