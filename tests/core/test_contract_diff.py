"""Contract diffs: what a caller of the old artifact would notice."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from exporter.core.contract_diff import changes
from exporter.core.contract_records import Build, Contract, TensorSpec
from exporter.core.expressions import Expression
from exporter.core.size_range import Range

IDS = TensorSpec("ids", "int64", ("batch", "sequence"))
TYPES = TensorSpec("types", "int64", ("batch",))
WIDE = TensorSpec("state", "float32", ("batch", "sequence", 1024))
MASK = TensorSpec("mask", "int64", ("batch", "sequence"))
STATE = TensorSpec("state", "float32", ("batch", "sequence", 768))
POOLED = TensorSpec("pooled", "float32", ("batch", 768))
OLD = Contract(
    "bert", (IDS, MASK), (STATE,), {"batch": Range(1, 8), "sequence": Range(1, 512)}, constants={"use_cache": False}
)


def changed(**settings: Any) -> Contract:
    return dataclasses.replace(OLD, **settings)


def symbols(**settings: Range) -> dict[str, Range]:
    return OLD.symbols | settings


def test_equal_contracts_have_no_changes() -> None:
    assert changes(OLD, OLD) == ()


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (changed(inputs=(IDS,)), "input mask is missing"),
        (
            changed(inputs=(IDS, MASK, TYPES)),
            "types is new: callers have to pass it",
        ),
        (changed(inputs=(MASK, IDS)), "the order of the inputs changed: mask, ids"),
        (changed(inputs=(dataclasses.replace(IDS, dtype="int32"), MASK)), "input ids was int64, is int32"),
        (changed(inputs=(dataclasses.replace(IDS, shape=("batch",)), MASK)), "input ids had 2 dimensions, has 1"),
        (changed(symbols=symbols(batch=Range(2, 8))), "dimension 0 of input ids was batch (1 to 8), is batch (2 to 8)"),
        (changed(symbols=symbols(batch=Range(1, 8, (1, 8)))), "was batch (1 to 8), is batch (1 or 8)"),
        (changed(inputs=(IDS, dataclasses.replace(MASK, shape=(1, "sequence")))), "was batch (1 to 8), is 1"),
        (changed(inputs=(IDS, dataclasses.replace(MASK, shape=("2*batch", "sequence")))), "is 2*batch (1 to 8)"),
        (changed(outputs=()), "output state is missing"),
        (changed(outputs=(dataclasses.replace(STATE, shape=("batch", 768)),)), "output state had 3 dimensions, has 2"),
        (
            changed(outputs=(WIDE,)),
            "is [batch, sequence, 1024]",
        ),
        (changed(constants={"use_cache": True}), "use_cache is baked in as True, was False"),
        (changed(ops=("torchvision",)), "it calls operators of torchvision"),
        (changed(device="cuda:0"), "it is for cuda:0, was for cpu"),
        (changed(outputs=(POOLED, STATE)), "output pooled is new"),
        (changed(build=Build(("avx512f",))), "it needs a CPU with avx512f"),
    ],
)
def test_breaking_changes(new: Contract, expected: str) -> None:
    assert any(expected in change.what and change.breaking for change in changes(OLD, new)), changes(OLD, new)


@pytest.mark.parametrize(
    "new",
    [
        changed(symbols=symbols(batch=Range(1, 64))),
        changed(inputs=(IDS, dataclasses.replace(MASK, shape=(None, "sequence")))),
        changed(outputs=(STATE, POOLED)),
        changed(precision="bf16"),
        changed(torch="2.14.1"),
    ],
)
def test_compatible_changes(new: Contract) -> None:
    found = changes(OLD, new)
    assert found
    assert not any(change.breaking for change in found)


def test_outputs_that_moved_are_not_reported_as_missing() -> None:
    before, after = changed(outputs=(STATE, MASK)), changed(outputs=(MASK, POOLED, STATE))
    assert [change.what for change in changes(before, after)] == [
        "output pooled is new", "the order of the outputs changed: mask, pooled, state",
    ]  # fmt: skip


def test_a_renamed_symbol_is_not_a_change() -> None:
    specs = [dataclasses.replace(s, shape=("n", *s.shape[1:])) for s in (IDS, MASK, STATE)]
    renamed = changed(
        inputs=tuple(specs[:2]), outputs=(specs[2],), symbols={"n": Range(1, 8), "sequence": Range(1, 512)}
    )
    assert changes(OLD, renamed) == ()


def test_tying_independent_sizes_is_breaking() -> None:
    free = changed(
        inputs=(IDS, dataclasses.replace(MASK, shape=("batch", "other"))),
        symbols=symbols(other=Range(1, 512)),
    )
    assert any("has to match sequence" in c.what and c.breaking for c in changes(free, OLD))
    assert not any(change.breaking for change in changes(OLD, free))


def of(*inputs: tuple[str | int | None, ...], output: tuple[str | int | None, ...] = (), **most: int) -> Contract:
    specs = tuple(TensorSpec(name, "float32", shape) for name, shape in zip("xyz", inputs, strict=False))
    symbols = {name: Range(1, size) for name, size in most.items()}
    return Contract("m", specs, (TensorSpec("out", "float32", output),), symbols)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (of(("n",), ("2*n",), n=64), of(("n",), ("n",), n=128), "has to match n"),
        (of((4,), ("s",), s=8), of(("s",), ("s",), s=8), "has to match dimension 0 of input x"),
        (of(("2*n",), output=("n",), n=8), of(("n",), output=("n",), n=16), "output out was [n], is [n]"),
        (of(("n",), output=("n",), n=8), of(("n",), output=("2*n",), n=8), "output out was [n], is [2*n]"),
        (of((None,), ("n",), n=8), of(("n",), ("n",), n=8), "dimension 0 of input x"),
    ],
)
def test_dimensions_that_depend_on_a_symbol_in_another_way(old: Contract, new: Contract, expected: str) -> None:
    assert any(expected in change.what and change.breaking for change in changes(old, new)), changes(old, new)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (of(("n",), ("2*n",), output=("2*n",), n=8), of(("m",), ("2*m",), output=("2*m",), m=8)),
        (of(("2*n",), output=("2*n",), n=8), of(("m",), output=("m",), m=16)),
        (of(("2*n",), output=("n",), n=8), of(("m",), output=("m//2",), m=16)),
        (of(("n",), ("n//16",), output=("n//16",), n=64), of(("m",), ("m//16",), output=("m//16",), m=64)),
        (of((4,), (8,), n=8), of(("s",), ("2*s",), s=8)),
        (of(("n",), ("m",), n=8, m=8), of(("a",), ("b",), a=8, b=8)),
    ],
)
def test_dimensions_that_are_equivalent_with_another_symbol(old: Contract, new: Contract) -> None:
    assert not any(change.breaking for change in changes(old, new)), changes(old, new)


def test_a_smaller_step_is_compatible() -> None:
    def stepped(dim: str, most: int) -> Contract:
        return changed(
            inputs=(dataclasses.replace(IDS, shape=(dim, "sequence")),), symbols=symbols(batch=Range(1, most))
        )

    assert not any(c.breaking for c in changes(stepped("4*batch", 4), stepped("2*batch", 8)) if "input" in c.what)
    assert any(c.breaking for c in changes(stepped("2*batch", 8), stepped("4*batch", 4)))


def test_a_step_that_grew_breaks_callers() -> None:
    even, fourth = (symbols(sequence=Range(8, 512, multiple_of=step)) for step in (2, 4))
    (change,) = changes(changed(symbols=even), changed(symbols=fourth))[:1]
    assert change.breaking
    assert "(8 to 512, multiples of 2), is sequence (8 to 512, multiples of 4)" in change.what
    assert not any(change.breaking for change in changes(changed(symbols=fourth), changed(symbols=even)))


DECODER = Contract(
    "llama",
    (
        TensorSpec("ids", "int64", ("seq",)),
        TensorSpec("cache", "float32", ("past", 8)),
        TensorSpec("mask", "int64", ("past+seq",)),
    ),
    (TensorSpec("next", "float32", ("past+seq", 8)),),
    {"past": Range(1, 64), "seq": Range(1, 16)},
)


def with_dims(mask: Any = "past+seq", following: Any = "past+seq", **settings: Any) -> Contract:
    ids, cache, _ = DECODER.inputs
    inputs = (ids, cache, TensorSpec("mask", "int64", (mask,)))
    return dataclasses.replace(
        DECODER, inputs=inputs, outputs=(TensorSpec("next", "float32", (following, 8)),), **settings
    )


def renamed(names: dict[str, str]) -> Contract:
    def rename(spec: TensorSpec) -> TensorSpec:
        dims = (str(Expression.parse(d).renamed(names)) if isinstance(d, str) else d for d in spec.shape)
        return dataclasses.replace(spec, shape=tuple(dims))

    return dataclasses.replace(
        DECODER,
        inputs=tuple(map(rename, DECODER.inputs)),
        outputs=tuple(map(rename, DECODER.outputs)),
        symbols={names.get(name, name): bounds for name, bounds in DECODER.symbols.items()},
    )


def test_a_sum_that_was_not_checked_before_is_a_tightened_input() -> None:
    (change,) = changes(with_dims(None), DECODER)
    assert change.breaking
    assert change.what == "dimension 0 of input mask was any size, is past+seq (past 1 to 64, seq 1 to 16)"
    (change,) = changes(DECODER, with_dims(None))
    assert not change.breaking
    assert [one.breaking for one in changes(with_dims(following=None), DECODER)] == [True]


@pytest.mark.parametrize("names", [{"past": "z"}, {"past": "a", "seq": "b"}, {"past": "seq", "seq": "past"}])
def test_other_names_in_a_sum_are_no_change(names: dict[str, str]) -> None:
    assert changes(DECODER, DECODER) == ()
    assert changes(DECODER, renamed(names)) == ()
    assert changes(renamed(names), DECODER) == ()


def test_a_wider_range_of_a_part_of_a_sum() -> None:
    wider = with_dims(symbols={"past": Range(1, 64), "seq": Range(1, 32)})
    assert {change.breaking for change in changes(DECODER, wider)} == {False}
    assert any(change.breaking and "mask" in change.what for change in changes(wider, DECODER))
    stepped = with_dims(symbols={"past": Range(1, 64, multiple_of=4), "seq": Range(1, 16)})
    assert any("is past+seq (past 1 to 64, multiples of 4, seq 1 to 16)" in c.what for c in changes(DECODER, stepped))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (with_dims("total", symbols=DECODER.symbols | {"total": Range(2, 80)}), DECODER, "now has to be past+seq"),
        (with_dims("past+seq"), with_dims("past+seq+1"), "dimension 0 of input mask was past+seq"),
        (with_dims("past+seq"), with_dims("past+2*seq"), "dimension 0 of input mask now has to be past+2*seq"),
        (with_dims(), with_dims(following="past+seq-1"), "output next was [past+seq, 8], is [past+seq-1, 8]"),
        (with_dims(), with_dims(following="past"), "output next was [past+seq, 8], is [past, 8]"),
        (with_dims("past+seq", "past"), with_dims("past+seq", "past+seq"), "output next was [past, 8]"),
        (with_dims("(past+seq)//2"), with_dims("(past+seq+1)//2"), "is (past+seq+1)//2"),
    ],
)
def test_another_sum_is_a_breaking_change(old: Contract, new: Contract, message: str) -> None:
    assert any(message in change.what and change.breaking for change in changes(old, new)), changes(old, new)


def test_a_sum_that_became_a_size_of_its_own() -> None:
    """Callers could pass only past+seq, which the new contract still allows."""
    total = with_dims("total", "total", symbols=DECODER.symbols | {"total": Range(2, 80)})
    assert not any(change.breaking for change in changes(DECODER, total))
    both = dataclasses.replace(total, inputs=(*total.inputs, TensorSpec("bias", "float32", ("total",))))
    was = dataclasses.replace(DECODER, inputs=(*DECODER.inputs, TensorSpec("bias", "float32", ("past+seq",))))
    assert not any(change.breaking for change in changes(was, both))
    other = dataclasses.replace(DECODER, inputs=(*DECODER.inputs, TensorSpec("bias", "float32", ("past+seq-1",))))
    assert any("bias now has to match past+seq" in change.what for change in changes(other, both))


def test_a_rounded_sum_whose_parts_no_input_determines() -> None:
    same = with_dims("(past+seq)//2", "(past+seq)//2")
    rounded = dataclasses.replace(same, inputs=(TensorSpec("cache", "float32", ("past//2",)), same.inputs[2]))
    assert changes(same, same) == ()
    assert changes(rounded, rounded) == ()
