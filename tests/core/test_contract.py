"""Contracts: inferred by probing, enforced on calls, stored in artifacts. No torch here."""

from __future__ import annotations

import dataclasses
import json
import zipfile
from pathlib import Path

import pytest
from support.manifests import CONTRACT

from exporter.core import contract, contract_files, dimensions, inference, probing
from exporter.core.contract_records import Contract, Dim, TensorSpec
from exporter.core.errors import ArtifactError, ContractError, ExportError, RecipeError, UsageError
from exporter.core.expressions import Expression
from exporter.core.json_codec import from_json, to_json
from exporter.core.size_range import Range

SYMBOLS = {"batch": Range(1, 8), "sequence": Range(1, 16)}


def spec(*shape: Dim, name: str = "x", dtype: str = "float32") -> TensorSpec:
    return TensorSpec(name, dtype, shape)


def probed(*shapes_of, base: dict[str, int] | None = None, symbols: dict[str, Range] | None = None):
    """Infer the specs of tensors whose shapes are functions of the sizes."""
    return inference.probe_shapes(
        lambda sizes: tuple(spec(*shape(sizes), name=f"x{i}") for i, shape in enumerate(shapes_of)),
        base or {"batch": 2, "sequence": 5},
        SYMBOLS if symbols is None else symbols,
    )


def test_dimensions_follow_symbols() -> None:
    found = probed(lambda s: (s["batch"], s["sequence"], 768), lambda s: (3, s["batch"]))
    assert [f.shape for f in found] == [("batch", "sequence", 768), (3, "batch")]


def test_a_dimension_that_merely_equals_a_size_is_fixed() -> None:
    assert probed(lambda s: (s["batch"], 2, 5))[0].shape == ("batch", 2, 5)


def test_a_dimension_that_fits_no_expression_is_none() -> None:
    shape = probed(lambda s: (s["sequence"] ** 2, s["sequence"] - 1, s["batch"] * s["sequence"]))[0].shape
    assert shape == (None, "sequence-1", None)


def test_equal_example_sizes_are_distinguished() -> None:
    found = probed(lambda s: (s["batch"], s["sequence"]), base={"batch": 4, "sequence": 4})
    assert found[0].shape == ("batch", "sequence")


def test_a_size_at_its_maximum_is_probed_below() -> None:
    assert probed(lambda s: (s["batch"],), base={"batch": 8, "sequence": 5})[0].shape == ("batch",)


def test_a_symbol_with_one_size_stays_fixed() -> None:
    symbols = {"batch": Range(2, 2), "sequence": Range(1, 9)}
    assert probed(lambda s: (s["batch"], s["sequence"]), symbols=symbols)[0].shape == (2, "sequence")


def test_ranks_and_names_may_not_change() -> None:
    with pytest.raises(ContractError, match="differ in name or rank") as raised:
        probed(lambda s: (1,) * s["batch"])
    assert "--size" in raised.value.remedy
    with pytest.raises(ContractError, match="batch=3"):
        inference.infer_shapes(
            [({"batch": 2}, (spec(2, name="a"),)), ({"batch": 3}, (spec(3, name="b"),))], {"batch": Range(1, 8)}
        )


def test_capture_sizes_avoid_one_and_each_other() -> None:
    assert probing.capture_sizes({"batch": 1, "sequence": 14}, SYMBOLS) == {"batch": 2, "sequence": 14}
    assert probing.capture_sizes({"batch": 2, "sequence": 2}, SYMBOLS) == {"batch": 2, "sequence": 3}
    assert probing.capture_sizes({"batch": 1}, {"batch": Range(1, 1)}) == {"batch": 1}
    assert probing.capture_sizes({"n": 5}, {}) == {"n": 5}, "only symbols change"


def test_the_plan_starts_with_the_example_and_covers_both_ends_of_every_range() -> None:
    base = {"batch": 2, "sequence": 6}
    plan = probing.probe_plan(base, SYMBOLS)
    assert plan[:2] == [(base, 0), (base, 1)]
    tried = {name: {sizes[name] for sizes, _ in plan} for name in SYMBOLS}
    assert {1, 2, 3, 8} <= tried["batch"]
    assert {1, 2, 3, 7, 16} <= tried["sequence"]
    assert any(s["batch"] != 2 and s["sequence"] != 6 for s, _ in plan), "all sizes change together once"
    assert len({(probing.describe(s), seed) for s, seed in plan}) == len(plan), "no case appears twice"


def test_the_plan_stays_inside_the_ranges() -> None:
    for sizes, _ in probing.probe_plan({"batch": 4, "sequence": 9}, {"batch": Range(4, 5), "sequence": Range(8, 9)}):
        assert 4 <= sizes["batch"] <= 5
        assert 8 <= sizes["sequence"] <= 9


def test_a_sweep_is_every_combination_after_the_example() -> None:
    base = {"batch": 2, "sequence": 6, "depth": 3}
    points = probing.sweep_points(base, SYMBOLS, {"sequence": (16, 6), "batch": (2, 8)})
    assert points == {
        "batch=2 sequence=6 depth=3": {"sequence": 6, "batch": 2},
        "batch=2 sequence=16 depth=3": {"sequence": 16, "batch": 2},
        "batch=8 sequence=16 depth=3": {"sequence": 16, "batch": 8},
        "batch=8 sequence=6 depth=3": {"sequence": 6, "batch": 8},
    }
    assert next(iter(points)) == "batch=2 sequence=6 depth=3"
    planned = [sizes for sizes, _ in probing.probe_plan(base, SYMBOLS, points.values())]
    assert all({**base, **point} in planned for point in points.values())
    assert probing.sweep_points(base, SYMBOLS, {}) == {}


def test_a_sweep_stays_within_the_promised_sizes() -> None:
    with pytest.raises(UsageError, match="9 is outside the range of batch, 1 to 8"):
        probing.sweep_points({"batch": 2}, SYMBOLS, {"batch": (2, 9)})
    with pytest.raises(UsageError, match="4 is outside the range of batch, 1 or 8") as raised:
        probing.sweep_points({"batch": 1}, {"batch": Range(1, 8, (1, 8))}, {"batch": (1, 4)})
    assert raised.value.remedy == "give --specialize batch=1,4,8"
    with pytest.raises(UsageError, match="depth is not dynamic"):
        probing.sweep_points({"depth": 2}, SYMBOLS, {"depth": (2, 3)})


def test_the_plan_without_sizes() -> None:
    assert probing.probe_plan({}, {}) == [({}, 0), ({}, 1)]
    assert probing.describe({}) == "fixed sizes"


def test_sizes_are_checked() -> None:
    probing.check_sizes({"batch": 8, "other": 10**6}, SYMBOLS)
    for size in (0, 9):
        with pytest.raises(UsageError, match=f"batch is {size}, which is outside its range, 1 to 8") as raised:
            probing.check_sizes({"batch": size}, SYMBOLS)
        assert raised.value.remedy.endswith(
            "--size batch=N or --size batch=MIN..MAX[..STEP]; in a release file, sizes or ranges"
        )


PAIR = Contract(
    "m",
    (spec("batch", "sequence", name="ids", dtype="int64"), spec("batch", 4, None, name="x")),
    (spec("batch", name="y"),),
    SYMBOLS,
)
GOOD = (spec(2, 3, name="ids", dtype="int64"), spec(2, 4, 99))


def test_valid_inputs_pass() -> None:
    contract.enforce(PAIR, GOOD)
    contract.enforce(PAIR, (spec(8, 16, dtype="int64"), spec(8, 4, 0)))


@pytest.mark.parametrize(
    ("actual", "message"),
    [
        ((GOOD[0],), "1 inputs given, the contract has 2: ids, x"),
        ((*GOOD, GOOD[0]), "3 inputs given"),
        ((spec(2, 3, dtype="int32"), GOOD[1]), "ids: dtype int32, the contract wants int64"),
        ((spec(2, dtype="int64"), GOOD[1]), "ids: 1 dimensions, the contract wants 2"),
        ((GOOD[0], spec(2, 5, 9)), "x dim 1 is 5, the contract wants 4"),
        ((GOOD[0], spec(3, 4, 9)), r"x dim 0 is 3, but batch is 2 \(from ids dim 0\)"),
        ((spec(9, 3, dtype="int64"), spec(9, 4, 9)), "batch is 9, the contract allows 1 to 8"),
        ((spec(0, 3, dtype="int64"), spec(0, 4, 9)), "batch is 0, the contract allows 1 to 8"),
        ((spec(2, 17, dtype="int64"), GOOD[1]), "sequence is 17, the contract allows 1 to 16"),
    ],
)
def test_the_error_names_the_violation(actual: tuple[TensorSpec, ...], message: str) -> None:
    with pytest.raises(ContractError, match=message):
        contract.enforce(PAIR, actual)


def archive(path: Path, **members: str) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name, text in members.items():
            file.writestr(name.replace("__", "/"), text)
    return path


def test_a_contract_travels_in_a_zip(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.pt2", model__version="3")
    contract_files.append_to_zip(path, to_json(CONTRACT))
    assert contract_files.read_zip(path) == CONTRACT
    with zipfile.ZipFile(path) as written:
        assert written.infolist()[-1].date_time[0] == 1980  # constant, so the bytes are reproducible


def test_a_contract_does_not_depend_on_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The member has a constant date, because zip cannot store one before 1980, which a clock may show."""
    path = archive(tmp_path / "a.pt2", model__version="3")
    monkeypatch.setattr("time.time", lambda: 0.0)
    contract_files.append_to_zip(path, to_json(CONTRACT))
    assert contract_files.read_zip(path) == CONTRACT


def test_files_without_a_contract(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="carries no contract"):
        contract_files.read_zip(archive(tmp_path / "a.pt", model__version="3"))
    with pytest.raises(ArtifactError, match="cannot be read"):
        contract_files.read_zip(tmp_path / "missing.pt")
    (tmp_path / "b.pt").write_bytes(b"PK\x03\x04 no archive")
    with pytest.raises(ArtifactError, match="cannot be read"):
        contract_files.read_zip(tmp_path / "b.pt")


@pytest.mark.parametrize("text", ["{}", "[1", to_json(dataclasses.replace(CONTRACT, schema=3))])
def test_broken_contracts(tmp_path: Path, text: str) -> None:
    path = archive(tmp_path / "a.pt", model__version="3")
    contract_files.append_to_zip(path, text)
    with pytest.raises(ArtifactError):
        contract_files.read_zip(path)


def test_a_contract_whose_bytes_were_changed(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.pt", model__version="3")
    contract_files.append_to_zip(path, to_json(CONTRACT))
    path.write_bytes(path.read_bytes().replace(b'"batch"', b'"bitch"'))
    with pytest.raises(ArtifactError, match="cannot be read"):
        contract_files.read_zip(path)


def test_a_contract_with_an_undeclared_symbol(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.pt", model__version="3")
    data = json.loads(to_json(CONTRACT)) | {"symbols": {}}
    contract_files.append_to_zip(path, json.dumps(data))
    with pytest.raises(ArtifactError, match="batch"):
        contract_files.read_zip(path)


def test_derived_dimensions_are_inferred() -> None:
    found = probed(lambda s: (2 * s["batch"] + 1, s["sequence"] // 2, (s["sequence"] + 1) // 2))[0]
    assert found.shape == ("2*batch+1", "sequence//2", "(sequence+1)//2")


def derived(*shape: Dim, **more: Range) -> Contract:
    symbols = {"n": Range(2, 9), "m": Range(1, 3)} | more
    return dataclasses.replace(CONTRACT, inputs=(spec(*shape),), outputs=(), symbols=symbols)


@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        (("n", "2*n+1"), (3, 7)),
        (("2*n+1", "n"), (7, 3)),
        (("n//2", "2*n"), (2, 10)),
        (("n//2",), (4,)),
        (("(n+1)//2", "m"), (1, 3)),
    ],
)
def test_sizes_that_fit_their_expressions(shape: tuple[Dim, ...], sizes: tuple[int, ...]) -> None:
    contract.enforce(derived(*shape), [spec(*sizes)])


@pytest.mark.parametrize(
    ("shape", "sizes", "message"),
    [
        (("n", "2*n+1"), (3, 8), r"x dim 1 is 8, not 2\*n\+1 = 7, but n is 3 \(from x dim 0\)"),
        (("2*n+1",), (8,), r"no n of 2 to 9 gives 2\*n\+1 = 8"),
        (("2*n+1",), (21,), r"x dim 0: n is 10, the contract allows 2 to 9"),
        (("n//2",), (5,), r"no n of 2 to 9 gives n//2 = 5"),
        (("(3*n)//2",), (5,), r"no n of 2 to 9 gives \(3\*n\)//2 = 5"),
        (("n//2", "2*n"), (2, 12), r"x dim 0 is 2, not n//2 = 3, but n is 6 \(from x dim 1\)"),
    ],
)
def test_sizes_that_do_not_fit_their_expressions(shape: tuple[Dim, ...], sizes: tuple[int, ...], message: str) -> None:
    with pytest.raises(ContractError, match=message):
        contract.enforce(derived(*shape), [spec(*sizes)])


@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        (("m", "n", "m+n"), (2, 5, 7)),
        (("m+n", "m", "n"), (7, 2, 5)),
        (("m", "m+n", "2*n"), (2, 7, 10)),
        (("m+2*n-1", "m", "n//2"), (12, 3, 2)),
        (("(m+n)//4", "m"), (2, 3)),
        (("m+n", "m+n+1"), (7, 8)),
        (("m+n", "k+m", "k"), (7, 4, 2)),
    ],
)
def test_sizes_that_fit_sums(shape: tuple[Dim, ...], sizes: tuple[int, ...]) -> None:
    contract.enforce(derived(*shape, k=Range(1, 9)), [spec(*sizes)])


@pytest.mark.parametrize(
    ("shape", "sizes", "message"),
    [
        (
            ("m", "n", "m+n"),
            (2, 5, 6),
            r"x dim 2 is 6, not m\+n = 7, but m is 2 \(from x dim 0\) and n is 5 \(from x dim 1\)",
        ),
        (("m", "m+n", "n"), (2, 8, 5), r"x dim 1 is 8, not m\+n = 7"),
        (("m", "m+n", "2*n"), (2, 8, 10), r"x dim 1 is 8, not m\+n = 7"),
        (("(m+2*n+1)//2", "m", "n"), (5, 3, 5), r"x dim 0 is 5, not \(m\+2\*n\+1\)//2 = 7"),
        (("m", "m+n"), (3, 13), r"x dim 1: n is 10, the contract allows 2 to 9, because m is 3 \(from x dim 0\)"),
        (("m", "m+2*n"), (3, 8), r"x dim 1 is 8: no n of 2 to 9 gives m\+2\*n = 8, because m is 3 \(from x dim 0\)"),
        (("m", "m+n", "n//2"), (2, 7, 3), r"x dim 2 is 3, not n//2 = 2, but n is 5 \(from x dim 1\)"),
        (("(m+n)//4", "m"), (0, 3), r"no n of 2 to 9 gives \(m\+n\)//4 = 0"),
        (("m+n", "m+n+1"), (13, 14), r"x dim 0 is 13: no m of 1 to 3 and n of 2 to 9 gives m\+n = 13"),
        (("9000000000000000000*m+9000000000000000000*n", "m"), (5, 3), "no n of 2 to 9 gives"),
    ],
)
def test_sizes_that_do_not_fit_sums(shape: tuple[Dim, ...], sizes: tuple[int, ...], message: str) -> None:
    with pytest.raises(ContractError, match=message):
        contract.enforce(derived(*shape), [spec(*sizes)])


def test_sums_of_known_and_unknown_sizes() -> None:
    promised = derived("m", "m+n", "m+n-1")
    assert contract.sizes_of(promised, [spec(2, 7, 6)]) == {"m": 2, "n": 5}
    assert contract.sizes_of(derived("m+n", "n"), [spec(7, 5)]) == {"m": 2, "n": 5}
    assert contract.sizes_of(derived("m+n"), [spec(7)]) == {}
    assert contract.shape_at(promised.inputs[0], {"m": 2, "n": 5}) == (2, 7, 6)
    with pytest.raises(ContractError, match="x dim 1 does not follow from the sizes"):
        contract.shape_at(promised.inputs[0], {"m": 2})
    assert contract.settle(promised, {"n": 1}).inputs[0].shape == ("m", "m+1", "m")
    assert contract.settle(promised, {"m": 2, "n": 5}).inputs[0].shape == (2, 7, 6)
    with pytest.raises(ValueError, match=r"x has a dimension k\+m, which has no range"):
        derived("m", "k+m")


def test_which_symbols_the_inputs_tell() -> None:
    inputs = [spec("m", "m+n"), spec("k+n", None, 3), spec("i+j")]
    assert contract.told(inputs) == {"m", "n", "k"}
    assert contract.told([spec("m+n", "m+n+1")]) == set()
    assert contract.told([spec("m+n", "n//2")]) == {"n"}


DECODER = {"past": Range(1, 64), "seq": Range(1, 16)}
TOGETHER = [{"past": 6, "seq": 5, "layers": 2}, {"past": 7, "seq": 7, "layers": 2}]


def test_sums_of_sizes_are_inferred() -> None:
    shape = probed(
        lambda s: (
            s["past"],
            s["past"] + s["seq"],
            2 * s["past"] + s["seq"] - 1,
            768 * s["past"] + 3 * s["seq"],
        ),
        base={"past": 5, "seq": 3},
        symbols=DECODER,
    )[0].shape
    expected = ("past", "past+seq", "2*past+seq-1", "768*past+3*seq")
    assert shape == expected


@pytest.mark.parametrize("base", [{"past": 1, "seq": 1}, {"past": 4, "seq": 4}, {"past": 5, "seq": 3}])
def test_what_only_looks_like_a_sum_has_no_expression(base: dict[str, int]) -> None:
    """Each of these is a sum if only one size changes: they differ where both do."""
    shape = probed(
        lambda s: (
            s["past"] * s["seq"],
            max(s["past"], s["seq"]),
            s["past"] // 2 + s["seq"] // 2,
            (s["past"] + s["seq"]) // 2,  # a sum, but many others fit what a few probes show
            -(-s["past"] // 3) - (-s["seq"] // 3),
            s["past"] - s["seq"] + 70,
        ),
        base=base,
        symbols=DECODER,
    )[0].shape
    assert shape == (None,) * 6


def test_sizes_move_together_only_to_verify_a_sum() -> None:
    probes: list[dict[str, int]] = []

    def probe(shape):
        def ask(sizes):
            probes.append(sizes)
            return (spec(*shape(sizes)),)

        probes.clear()
        inference.probe_shapes(ask, {"past": 5, "seq": 3, "layers": 2}, DECODER)
        return [sizes for sizes in probes if sizes["past"] != 5 and sizes["seq"] != 3]

    assert probe(lambda s: (s["past"], 2 * s["seq"], s["past"] ** 2 + s["seq"])) == []
    assert probe(lambda s: (s["past"] + s["seq"], s["past"])) == TOGETHER
    assert probe(lambda s: (s["past"] * s["seq"],)) == TOGETHER
    assert probe(lambda s: ((s["past"] + s["seq"]) // 2,)) == []


@pytest.mark.parametrize("error", [ExportError, RecipeError])
def test_a_sum_that_cannot_be_verified_has_no_expression(error: type[Exception]) -> None:
    def shape(sizes):
        if sizes["past"] != 5 and sizes["seq"] != 3:
            raise error("one at a time")
        return (sizes["past"], sizes["past"] + sizes["seq"])

    assert probed(shape, base={"past": 5, "seq": 3}, symbols=DECODER)[0].shape == ("past", None)


def test_a_sum_with_a_step_and_with_choices() -> None:
    symbols = {"past": Range(8, 64, multiple_of=8), "seq": Range(1, 4, (1, 4))}
    shape = probed(
        lambda s: (s["past"] + s["seq"], s["past"] + 2 * s["seq"]), base={"past": 16, "seq": 1}, symbols=symbols
    )[0].shape
    assert shape == ("past+seq", None)  # two sizes of seq are enough for a plain sum only


def choose(sizes=None, ranges=None, dynamic: str = "all"):
    return probing.choose_sizes({"batch": 2, "sequence": 5, "image": 224}, SYMBOLS, sizes or {}, ranges or {}, dynamic)


def test_the_user_chooses_sizes() -> None:
    assert choose() == ({"batch": 2, "sequence": 5, "image": 224}, SYMBOLS)
    assert choose({"image": 160})[0]["image"] == 160
    assert choose(dynamic="batch")[1] == {"batch": Range(1, 8)}
    assert choose(dynamic="none")[1] == {}
    base, symbols = choose(ranges={"batch": Range(4, 16), "image": Range(100, 300)}, dynamic="image, batch")
    assert (base["batch"], base["image"]) == (4, 224)
    assert symbols == {"batch": Range(4, 16), "image": Range(100, 300)}


def test_a_range_of_one_size_fixes_it() -> None:
    base, symbols = choose(ranges={"batch": Range(4, 4), "image": Range(200, 250, multiple_of=100)})
    assert (base["batch"], base["image"]) == (4, 200)
    assert symbols == {name: bounds for name, bounds in SYMBOLS.items() if name not in ("batch", "image")}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"sizes": {"width": 3}}, "inputs.. takes no width"),
        ({"ranges": {"width": Range(1, 3)}}, "inputs.. takes no width"),
        ({"dynamic": "width"}, "inputs.. takes no width"),
        ({"dynamic": "image"}, "image cannot be dynamic: it has no range"),
        ({"sizes": {"batch": 9}}, "batch is 9, which is outside its range, 1 to 8"),
        ({"sizes": {"batch": 2}, "ranges": {"batch": Range(4, 8)}}, "batch is 2"),
    ],
)
def test_impossible_sizes(asked, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        choose(**asked)


def test_a_named_dimension_has_no_size_of_more_than_64_bits() -> None:
    assert dimensions.parse(f"batch=x:1:1..{(1 << 63) - 1}").bounds == Range(1, (1 << 63) - 1)
    with pytest.raises(UsageError, match="has a size that is too large") as raised:
        dimensions.parse(f"batch=x:1:1..{1 << 63}")
    assert raised.value.remedy == "give at most 9223372036854775807"


STEPPED = {"height": Range(32, 512, multiple_of=16)}


def test_sizes_of_goldens_are_multiples_of_the_step() -> None:
    sizes = {at["height"] for at, _ in probing.probe_plan({"height": 64}, STEPPED)}
    assert sizes == {32, 48, 64, 80, 512}
    both = {name: Range(16, 64, multiple_of=16) for name in ("height", "width")}
    assert probing.capture_sizes({"height": 16, "width": 16}, both) == {"height": 32, "width": 48}
    assert [probing.nearest(size, STEPPED["height"]) for size in (1, 39, 41, 1000)] == [32, 32, 48, 512]
    assert all(size % 16 == 0 for size in probing.probes(64, STEPPED["height"]))


def test_a_step_is_enforced_and_reported() -> None:
    promised = Contract("m", (TensorSpec("x", "float32", ("height", "2*height")),), (), STEPPED)
    contract.enforce(promised, [TensorSpec("x", "float32", (48, 96))])
    with pytest.raises(ContractError, match="height is 40, the contract allows 32 to 512, multiples of 16"):
        contract.enforce(promised, [TensorSpec("x", "float32", (40, 80))])


@pytest.mark.parametrize(("schema", "read"), [(1, True), (2, True), (3, False)])
def test_supported_schemas(schema: int, read: bool) -> None:
    text = to_json(dataclasses.replace(CONTRACT, schema=schema))
    if read:
        assert from_json(Contract, text).schema == schema
    else:
        with pytest.raises(ArtifactError, match="schema 3 is not known, only 1 and 2"):
            from_json(Contract, text)


def test_a_contract_of_schema_1_has_a_step_of_1() -> None:
    data = json.loads(to_json(dataclasses.replace(CONTRACT, schema=1)))
    for bounds in data["symbols"].values():
        del bounds["multiple_of"]
    assert all(bounds.multiple_of == 1 for bounds in from_json(Contract, json.dumps(data)).symbols.values())


@pytest.mark.parametrize(("low", "high", "step"), [(1, 8, 9), (1, 8, 0), (9, 8, 1)])
def test_ranges_without_a_size_are_invalid(low: int, high: int, step: int) -> None:
    data = json.loads(to_json(CONTRACT))
    data["symbols"] = {name: {"min": low, "max": high, "multiple_of": step} for name in data["symbols"]}
    with pytest.raises(ArtifactError, match="not a valid Contract"):
        from_json(Contract, json.dumps(data))


@pytest.mark.parametrize(
    ("held", "wanted", "covered"),
    [
        (Range(1, 8), Range(2, 8), True),
        (Range(2, 8), Range(1, 8), False),
        (Range(2, 8), Range(2, 9), False),
        (Range(8, 64, multiple_of=8), Range(16, 64, multiple_of=16), True),
        (Range(8, 64, multiple_of=8), Range(8, 64, multiple_of=4), False),
        (Range(8, 64, multiple_of=8), Range(16, 16), True),
        (Range(8, 16, (8, 16)), Range(8, 16, multiple_of=8), True),
        (Range(8, 16, (8, 16)), Range(8, 1 << 40), False),
        (Range(1, 64), Range(8, 16, (8, 16)), True),
        (Range(9, 64), Range(8, 16, (8, 16)), False),
    ],
)
def test_a_range_covers_another(held: Range, wanted: Range, covered: bool) -> None:
    assert held.covers(wanted) is covered


@pytest.mark.parametrize(
    ("factor", "offset", "divisor", "base", "bounds"),
    [
        (1, -10, 20, 1600, Range(50, 1600)),  # three convolutions of a speech encoder
        (1, -80, 320, 16000, Range(400, 160000)),
        (1, 1919, 1920, 48000, Range(1920, 96000)),
        (1, -2, 4, 30, Range(7, 64)),
        (3, 5, 2, 9, Range(1, 40)),
        (1, 3, 8, 64, Range(16, 128, multiple_of=16)),
        (1, 0, 128, 128, Range(128, 8192, multiple_of=128)),
        (1, 0, 64, 128, Range(1, 8192)),
    ],
)
def test_quotients_are_exact_at_every_size(factor: int, offset: int, divisor: int, base: int, bounds: Range) -> None:
    asked = []

    def shape(sizes):
        asked.append(sizes["n"])
        return (sizes["n"], (factor * sizes["n"] + offset) // divisor)

    (found,) = probed(shape, base={"n": base}, symbols={"n": bounds})
    quotient = Expression.parse(str(found.shape[1]))
    assert all(quotient.at({"n": size}) == (factor * size + offset) // divisor for size in bounds.sizes)
    assert len(asked) <= 24
    assert max(asked) <= 4 * base


def test_a_quotient_that_a_further_size_refutes_is_none() -> None:
    """Padding to a multiple of 8 looks like rounding up, until more sizes are tried."""
    (found,) = probed(lambda s: (8 * -(-s["n"] // 8),), base={"n": 64}, symbols={"n": Range(1, 128)})
    assert found.shape == (None,)


def test_further_sizes_may_fail() -> None:
    def shape(sizes):
        if sizes["n"] in (50, 1200):
            raise ExportError("too few samples")
        return ((sizes["n"] - 10) // 20,)

    (found,) = probed(shape, base={"n": 1600}, symbols={"n": Range(50, 1600)})
    assert found.shape == ("(n-10)//20",)


@pytest.mark.parametrize(
    ("base", "ranges", "found"),
    [
        ({"h": 6, "w": 9}, {"h": Range(2, 16), "w": Range(2, 16)}, [{"h": 6, "w": 6}]),
        ({"n": 1, "s": 100}, {"n": Range(1, 8), "s": Range(1, 512)}, [{"n": 2, "s": 2}]),
        ({"n": 2, "s": 100}, {"n": Range(1, 8), "s": Range(64, 512)}, []),  # no size of both
        ({"n": 4, "s": 4}, {"n": Range(1, 8), "s": Range(1, 8)}, []),
        (
            {"n": 2, "s": 4, "h": 64, "w": 96},
            {"n": Range(1, 8), "s": Range(1, 8), "h": Range(32, 128), "w": Range(32, 128)},
            [{"n": 4, "s": 4, "h": 64, "w": 96}, {"n": 2, "s": 4, "h": 64, "w": 64}],
        ),
        ({"n": 4}, {"n": Range(1, 8)}, []),
        ({}, {}, []),
    ],
)
def test_equal_sizes(base: dict[str, int], ranges: dict[str, Range], found: list[dict[str, int]]) -> None:
    assert probing.equal_sizes(base, ranges) == found
