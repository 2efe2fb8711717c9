"""Outputs that callers may write to, without a change of later calls."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.commands import Run
from torch import nn

import exporter
from exporter.model import own_outputs


class Anchors(nn.Module):
    """Returns tensors of its own, constants that torch.jit computes in advance, and views of what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("own", torch.zeros(4))
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor):  # torch.jit.script does not know tuples of any length
        y = self.linear(x) + self.own
        anchors = torch.arange(4) * 2
        return self.own, self.own[1:], self.linear.weight, anchors, x + anchors, y, y.t(), y


@pytest.fixture(params=["traced", "frozen", "scripted", "exported"])
def call(request: pytest.FixtureRequest):
    """Return a function of x that returns outputs which the caller owns."""
    x = torch.ones(2, 4)
    if request.param == "exported":
        module = torch.export.export(Anchors().eval(), (x,)).module()
        own = own_outputs.of_module(module)
    else:
        module = torch.jit.script(Anchors()) if request.param == "scripted" else torch.jit.trace(Anchors(), x)
        module = torch.jit.freeze(module.eval()) if request.param == "frozen" else module
        own = own_outputs.of_torchscript

    def act(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            return own(tuple(module(x)), (x,))

    return act


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_writing_to_outputs_changes_no_later_call(call) -> None:
    for _ in range(3):  # the first calls of TorchScript differ
        x = torch.ones(2, 4)
        expected = [tensor.clone() for tensor in call(x)]
        for tensor in call(x):
            tensor.fill_(100)
        for tensor, before in zip(call(x), expected, strict=True):
            torch.testing.assert_close(tensor, before, rtol=0, atol=0)


def test_what_a_call_made_is_not_copied() -> None:
    x = torch.ones(2, 4)
    made = torch.jit.script(transposed_and_increased)(x)
    assert [tensor.data_ptr() for tensor in own_outputs.of_torchscript(made, (x,))] == [t.data_ptr() for t in made]


def transposed_and_increased(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.t(), x + 1


def test_an_opened_artifact_is_not_changed(run: Run, tmp_path: Path) -> None:
    (tmp_path / "anchors.py").write_text(
        "import torch\n"
        "class Model(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        anchors = torch.arange(4.0) * 2\n"
        "        return x + anchors, anchors\n"
        "class net:\n"
        "    load = staticmethod(lambda weights: Model())\n"
        "    inputs = staticmethod(lambda: {'x': torch.ones(2, 4)})\n"
    )
    _, place = run(f"{tmp_path / 'anchors'}:net", "trace,export")
    for name in ("trace.pt", "exported.pt2"):
        artifact = exporter.open_artifact(place / name)
        x = torch.ones(2, 4)
        first = artifact(x=x)
        expected = {name: tensor.clone() for name, tensor in first.items()}
        for tensor in first.values():
            tensor.mul_(3)
        for output, tensor in artifact(x=x).items():
            assert torch.equal(tensor, expected[output])
