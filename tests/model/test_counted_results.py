"""torchvision's nms and batched_nms, whose number of results depends on values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torchvision
from torchvision.ops import batched_nms, boxes

from exporter.core.contract_records import Contract, TensorSpec
from exporter.core.size_range import Range
from exporter.model import capture, counted_results, flattening


class Detector(torch.nn.Module):
    """Leaves out unlikely boxes, and those that overlap a better one of their class."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, found: torch.Tensor, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        likely = scores > 0.5
        found, scores = found[likely], scores[likely]
        kept = self.function(found, scores, (scores > 0.8).long())
        return found[kept], scores[kept]


def each_class(found: torch.Tensor, scores: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    return batched_nms(found, scores, classes, 0.5)


def all_classes(found: torch.Tensor, scores: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    return torchvision.ops.nms(found, scores, 0.5)


@pytest.mark.parametrize(("count", "shift"), [(30, -60), (2500, -30), (2500, 0)])
def test_negative_coordinates(count: int, shift: float) -> None:
    """Of many boxes, torchvision looks at each class alone; of fewer, it moves classes apart by the last coordinate."""
    torch.manual_seed(0)
    found, scores = drawn(count)
    found = found * 5 + shift
    model = Detector(each_class).eval()
    example = drawn(12)
    flat = flattening.FlatModule(model, flattening.flatten_inputs(model, example)).eval()
    specs = (TensorSpec("found", "float32", ("n", 4)), TensorSpec("scores", "float32", ("n",)))
    program = capture.export_program(flat, example, Contract("detector", specs, (), {"n": Range(1, 5000)})).module()
    for got, expected in zip(program(found, scores), model(found, scores), strict=True):
        assert torch.equal(got, expected)


def drawn(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    corner = torch.rand(count, 2) * 20
    return torch.cat([corner, corner + 4 + torch.rand(count, 2) * 8], 1), torch.rand(count)


@pytest.mark.parametrize("function", [each_class, all_classes])
def test_any_number_of_boxes(function: Callable[..., torch.Tensor]) -> None:
    torch.manual_seed(0)
    example = drawn(12)
    model = Detector(function).eval()
    flat = flattening.FlatModule(model, flattening.flatten_inputs(model, example)).eval()
    specs = (TensorSpec("found", "float32", ("n", 4)), TensorSpec("scores", "float32", ("n",)))
    program = capture.export_program(flat, example, Contract("detector", specs, (), {"n": Range(1, 60)})).module()
    sizes = set()
    for count in (12, 60, 1, 30):
        found, scores = drawn(count)
        for share in (1.0, 0.3, 0.55):  # of the scores: few boxes, or none
            got, expected = program(found, scores * share), model(found, scores * share)
            for one, other in zip(got, expected, strict=True):
                assert torch.equal(one, other)
            sizes.add(len(expected[1]))
    assert {0, 1} < sizes


def test_numbers_that_are_known_call_torchvision() -> None:
    found, scores = drawn(9)
    usual = boxes.batched_nms
    with counted_results.any_number():
        assert batched_nms is boxes.batched_nms is not usual
        assert torch.equal(batched_nms(found, scores, scores.long(), 0.5), usual(found, scores, scores.long(), 0.5))
    assert boxes.batched_nms is usual
