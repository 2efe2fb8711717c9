"""References in float64 that are taken from an earlier run, and all that prevents it."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from support.commands import request_for

from exporter.core import tolerances
from exporter.core.contract_records import Contract
from exporter.evidence import eager, golden
from exporter.model import tensor_files
from exporter.runs import pipeline
from exporter.targets import Options
from exporter.workers import artifact_cache, reference_cache
from exporter.workers.reference_cache import References

TOLERANCE = tolerances.of_outputs(())
DATA = [(torch.ones(2, 3),), (torch.full((1, 3), 0.5),)]
UNUSUAL = [(torch.full((2, 3), -2.0),)]

Ask = Callable[..., tuple[list[Any], list[Any], str]]


class Net(torch.nn.Linear):
    """A layer that returns a tuple, as modules of exporter do."""

    def forward(self, x: torch.Tensor) -> Any:
        """Return rows of 4 for rows of 3."""
        return (super().forward(x),)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one each time that references are computed."""
    calls: list[int] = []
    usual = eager.references_also

    def compute(*arguments: Any) -> Any:
        calls.append(1)
        return usual(*arguments)

    monkeypatch.setattr(eager, "references_also", compute)
    return calls


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """A function that asks for the references of a layer."""
    monkeypatch.setenv("EXPORTER_CACHE_GB", "1")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(
        reference_cache, "LOADED", time.time()
    )  # earlier tests of this process may have written recipes
    torch.manual_seed(0)
    layer = Net(3, 4).eval()

    def act(
        program: bytes = b"program",
        data: Any = DATA,
        change: Callable[[torch.Tensor], torch.Tensor] = lambda given: given,
        module: torch.nn.Module = layer,
        kind: str = "file",
        **options: Any,
    ) -> tuple[list[Any], list[Any], str]:
        work = Path(tempfile.mkdtemp(dir=tmp_path))
        file = work / "exported.pt2"
        file.write_bytes(program)
        source = SimpleNamespace(kind=kind, place="net", attribute="", inputs_file=str(tmp_path / "inputs.pt"))
        job: Any = SimpleNamespace(work=work, options=Options(**options), source=source, captures=lambda _: [file])
        references = References(job, Contract("net", (), (), {}), TOLERANCE)

        def run(one: Any) -> Any:
            return tuple(map(change, eager.run(module, one, "cpu")))

        made = references(module, data, [run(one) for one in data], [(one, run(one)) for one in UNUSUAL])
        references.keep()
        assert list(work.iterdir()) == [file]
        return made

    return act


def same(one: Any, other: Any) -> bool:
    return all(torch.equal(a, b) for xs, ys in zip(one, other, strict=True) for a, b in zip(xs, ys, strict=True))


def test_unchanged_calls_are_not_computed_again(ask: Ask, computed: list[int]) -> None:
    first, others, kind = ask()
    again, others_again, kind_again = ask()
    assert (len(computed), kind, kind_again) == (1, "float64", "float64")
    assert same(first, again)
    assert same(others, others_again)
    assert all(one.dtype == torch.float64 for (one,) in again)


def test_whatever_changes_is_computed_again(ask: Ask, computed: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    ask()
    ask(program=b"another program")
    ask(data=[(torch.zeros(2, 3),), DATA[1]])
    ask(data=DATA[:1])
    ask(change=lambda given: given.nextafter(torch.tensor(9.0)))
    ask(threads=2)
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    ask()
    assert len(computed) == 7
    ask()
    assert len(computed) == 7


def test_the_code_of_the_model_counts(
    ask: Ask, computed: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program in float32 may be the same although the code computes something else in float64."""
    file = tmp_path / "helper.py"
    write(file, "FACTOR = 1")
    monkeypatch.setitem(sys.modules, "helper", ModuleType("helper"))
    monkeypatch.setattr(sys.modules["helper"], "__file__", str(file), raising=False)
    ask()
    ask()
    assert len(computed) == 1
    write(file, "FACTOR = 2")
    ask()
    assert len(computed) == 2
    file.write_text("FACTOR = 1")
    ask()
    assert len(computed) == 3, "the file was changed after this process may have loaded it"


def write(file: Path, text: str) -> None:
    """Write a file as if before this process started."""
    file.write_text(text)
    os.utime(file, (1e9, 1e9))


def test_a_file_that_the_user_names_counts(ask: Ask, computed: list[int], tmp_path: Path) -> None:
    ask()
    write(tmp_path / "inputs.pt", "first")
    ask()
    ask()
    assert len(computed) == 2
    write(tmp_path / "inputs.pt", "other")
    ask()
    assert len(computed) == 3


@pytest.mark.parametrize("module", ["builtins", "__main__"])
def test_a_model_without_a_file_is_computed_again(ask: Ask, computed: list[int], module: str) -> None:
    """A class of the user's main script is unpickled in a process whose own main module is another file."""
    kinds: dict[str, Any] = {"Net": Net, "__name__": module}
    exec("class Own(Net): pass", kinds)
    for _ in range(2):
        torch.manual_seed(0)
        ask(module=kinds["Own"](3, 4).eval())
    assert len(computed) == 2


def test_a_model_in_memory_is_computed_again(ask: Ask, computed: list[int]) -> None:
    for _ in range(2):
        ask(kind="memory")
    assert len(computed) == 2


def test_references_that_eager_does_not_agree_with_are_not_kept(ask: Ask, computed: list[int], tmp_path: Path) -> None:
    for _ in range(2):
        ask(change=lambda given: given + 0.01)
    assert len(computed) == 2
    assert not (tmp_path / "cache").exists()


def test_nothing_is_kept_or_taken_if_the_user_forbids_it(
    ask: Ask, computed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ask()
    ask(reuse=False)
    monkeypatch.setenv("EXPORTER_CACHE_GB", "0")
    ask()
    assert len(computed) == 3


def test_wrong_references_in_the_cache_are_not_taken(ask: Ask, computed: list[int], tmp_path: Path) -> None:
    """Whoever replaces them and their hash is found out by eager's outputs."""
    first, _, _ = ask()
    for place in (tmp_path / "cache" / "artifacts").iterdir():
        file, record = place / "references.safetensors", place / artifact_cache.RECORD
        before, (stored, _) = artifact_cache.hash_of(file), tensor_files.read(file)
        tensor_files.save({name: tensor + 0.01 for name, tensor in stored.items()}, file)
        record.write_text(record.read_text().replace(before, artifact_cache.hash_of(file)))
    again, _, _ = ask()
    assert len(computed) == 2
    assert same(first, again)


def test_references_that_are_not_in_float64_are_not_kept(ask: Ask, computed: list[int]) -> None:
    class OnlyFloat(Net):
        def forward(self, x: torch.Tensor) -> Any:
            assert x.dtype == torch.float32
            return super().forward(x)

    module = OnlyFloat(3, 4).eval()
    assert [ask(module=module)[2] for _ in range(2)] == ["eager", "eager"]
    assert len(computed) == 2


def test_a_golden_made_again_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPORTER_CACHE_GB", "1")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    made = []
    for name in ("first", "again"):
        manifest, place = pipeline.run(request_for("tiny:mlp", tmp_path / name, "export"))
        assert manifest.golden is not None
        assert manifest.golden.reference == "float64"
        made.append(golden.read(place / manifest.golden.file.path))
        said = "the references in float64 are those of an earlier run" in (place / "logs/prepare.log").read_text()
        assert said == (name == "again")
    files = list((tmp_path / "cache" / "artifacts").glob("*/references.safetensors"))
    assert len(files) == 1, "those of both runs have the same key"
    first, again = made
    assert [case.record for case in first.cases] == [case.record for case in again.cases]
    assert same([case.reference for case in first.cases], [case.reference for case in again.cases])


def test_hashes_tell_dtypes_and_shapes_apart() -> None:
    zeros = [torch.zeros(2, 2), torch.zeros(4), torch.zeros(4, dtype=torch.int32), torch.zeros(0), torch.tensor(0.0)]
    assert len({reference_cache._hash((one,)) for one in zeros}) == len(zeros)
    assert reference_cache._hash((torch.arange(6.0).reshape(2, 3).t(),)) == reference_cache._hash(
        (torch.arange(6.0).reshape(2, 3).t().contiguous(),)
    )
