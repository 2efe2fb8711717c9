"""Inputs whose value a trace keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from exporter import targets
from exporter.core.contract_records import Contract, TensorSpec
from exporter.core.errors import ExportError
from exporter.core.size_range import Range
from exporter.model.capture import Program
from exporter.model.flattening import FlatModule, flatten_inputs
from exporter.targets import Options, _tracing, _values_read


class Resampler(nn.Module):
    """Chooses its layer by the sample rate."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, rate: torch.Tensor) -> torch.Tensor:
        return self.wide(x) if int(rate) == 16000 else self.narrow(x)


class Masked(nn.Module):
    """Fills masked positions only if there are any."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x if bool(mask.all()) else x.masked_fill(~mask, 0.0)


class Table(nn.Module):
    """Reads the largest index for a check alone, which a trace leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(4, 8)

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        if int(index.max()) > 3:
            raise ValueError("an index is too large")
        return x + self.rows(index)


class Padded(nn.Module):
    """Makes a mask of as many positions as the longest row has, which is the size of the other input."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return x * (torch.arange(int(lengths.max()))[None] < lengths[:, None])


class Pixels(nn.Module):
    """Scales images of bytes; the example is white."""

    def forward(self, x: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        return x + (image.float() / 255 if int(image.max()) > 1 else image.float())


class Varying(nn.Module):
    """Reads an index that differs from row to row; the golden varies it."""

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return x * int(index.max())


def exported(
    module: nn.Module, second: torch.Tensor, folder: Path, batch: Range | None = None, make_at: Any = None
) -> targets.Exported:
    inputs = {"x": torch.randn(2, 8), "second": second}
    flat = FlatModule(module, flatten_inputs(module, tuple(inputs.values()))).eval()
    specs = (
        TensorSpec("x", "float32", ("batch", 8)),
        TensorSpec("second", str(second.dtype)[6:], ("batch",) * min(second.dim(), 1) + tuple(second.shape[1:])),
    )
    promise = Contract("net", specs, (TensorSpec("y", "float32", (None, None)),), {"batch": batch or Range(1, 4)})
    program = Program(promise, "cpu", lambda: flat, lambda: tuple(inputs.values()), None, make_at=make_at)
    return targets.get("trace").export(program, folder / "trace.pt", Options())


@pytest.mark.parametrize(
    ("module", "second", "line"),
    [
        (Resampler(), torch.tensor(16000), "int(rate)"),
        (Masked(), torch.ones(2, 8, dtype=torch.bool), "mask.all()"),
        (Masked(), torch.ones(8, 2, dtype=torch.bool).t(), "mask.all()"),
        (Pixels(), torch.full((2, 8), 255, dtype=torch.uint8), "image.max()"),
        (Pixels(), torch.full((2, 8), (1 << 63) - 1), "image.max()"),
    ],
)
def test_a_value_that_the_golden_does_not_vary(
    module: nn.Module, second: torch.Tensor, line: str, tmp_path: Path
) -> None:
    at = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if line in text)
    message = rf"reads the value of second \({__file__}:{at}\), and the trace keeps that of the example"
    with pytest.raises(ExportError, match=message):
        exported(module, second, tmp_path)


@pytest.mark.parametrize(
    ("module", "second"),
    [
        (Table(), torch.zeros(2, dtype=torch.int64)),
        (Padded(), torch.tensor([8, 8])),
        (Varying(), torch.tensor([1, 3])),
    ],
)
def test_other_reads_pass(module: nn.Module, second: torch.Tensor, tmp_path: Path) -> None:
    exported(module, second, tmp_path)
    assert (tmp_path / "trace.pt").is_file()


class Row(nn.Module):
    """Takes the row 0, or -1, which is the same one."""

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x + torch.eye(1, 8)[index],)


def test_values_that_eager_rejects_show_nothing() -> None:
    example = (torch.randn(1, 8), torch.zeros(1, dtype=torch.int64))
    assert _values_read.kept(Row(), lambda x, _: (x + torch.eye(1, 8)[0],), example, (0, 1)) is None
    found = _values_read.kept(Row(), lambda x, _: (x,), example, (0, 1))
    assert found is not None
    assert (found[0], int(found[1][1])) == (1, -1)


class Greedy(nn.Module):
    """Generates until every row has ended, which few inputs do before the last step."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.head = nn.Embedding(4, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
        found = []
        for _ in range(4):
            token = self.head(x + self.rows(token)).argmax(-1)
            found.append(token)
            if bool((token == 3).all()):
                break
        return torch.stack(found, -1)


class Overflowing(nn.Module):
    """Takes another path where numbers are not finite, and one that computes the same where they are negative."""

    def forward(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        y = x * other
        if bool(y.isinf().any()):
            y = y.clamp(-1e4, 1e4)
        return (2 * y) / 2 if bool((y < 0).all()) else y


def test_a_side_that_few_inputs_take_is_refused(tmp_path: Path) -> None:
    torch.manual_seed(1)
    with pytest.raises(ExportError, match=r"a branch depends on values \(.*\), and the trace keeps .* x, second"):
        exported(Greedy(), torch.zeros(1, dtype=torch.int64), tmp_path)


def test_sides_that_make_no_difference_pass_with_a_note(tmp_path: Path) -> None:
    made = exported(Overflowing(), torch.ones(1, 8), tmp_path)
    assert any("a branch depends on values" in note for note in made.notes)


class Noisy(nn.Module):
    """Draws random numbers, and branches."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x.nan_to_num() if bool(x.isnan().any()) else x + torch.rand_like(x),)


class BySize(nn.Module):
    """Depends on a size, and branches."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.nan_to_num() if bool(x.isnan().any()) else x
        return (y * 2 if x.shape[0] > 2 else y * 3,)


@pytest.mark.parametrize("module", [Noisy(), BySize()])
def test_what_is_not_the_branchs_fault_shows_nothing(module: nn.Module) -> None:
    example, small = (torch.randn(4, 3),), (torch.randn(1, 3),)
    with _tracing.warned():
        traced = torch.jit.trace(module, example, check_trace=False)
    assert not _values_read.disagrees_for_drawn(module, traced, [example, small], [0])


class Endless(nn.Module):
    """Does not end for negative numbers."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total = torch.zeros(())
        while bool(total < 1):
            total = total + x.sum()
        return (total,)


def test_a_call_that_does_not_end_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_values_read, "SEARCH_S", 0.3)
    example = (torch.full((2,), 100.0),)
    assert not _values_read.disagrees_for_drawn(Endless(), lambda x: (x.sum(),), [example], [0])


def test_the_smallest_sizes_are_those_of_the_contract(tmp_path: Path) -> None:
    asked = []

    def at(sizes: dict[str, int]) -> tuple[torch.Tensor, ...]:
        asked.append(sizes)
        if sizes["batch"] % 4:
            raise ValueError("the recipe takes multiples of 4 only")
        return (torch.ones(sizes["batch"], 8), torch.ones(1, 8))

    made = exported(Overflowing(), torch.ones(1, 8), tmp_path, batch=Range(1, 16, multiple_of=4), make_at=at)
    assert asked == [{"batch": 4}]
    assert made.notes


class Same(nn.Module):
    """Returns its input."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x,)


def test_a_search_ends_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def call(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        calls.append(x)
        return (x,)

    assert not _values_read.disagrees_for_drawn(Same(), call, [(torch.ones(2),)], [0])
    assert len(calls) == 1 + _values_read.DRAWN
    calls.clear()
    monkeypatch.setattr(_values_read, "SEARCH_S", 0.001)
    assert not _values_read.disagrees_for_drawn(Same(), call, [(torch.ones(2),)], [0])
    assert len(calls) < _values_read.DRAWN
