"""Masks of nn.TransformerEncoder and nn.TransformerDecoder, which torch compares with a causal mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.modules import transformer

from exporter.core.contract_records import Contract, TensorSpec
from exporter.core.size_range import Range
from exporter.model import capture, causal_masks, flattening
from exporter.targets import _tracing

Run = Callable[..., tuple[torch.Tensor, ...]]
MASK = nn.Transformer.generate_square_subsequent_mask


class Encoder(nn.Module):
    """An encoder whose mask is made in the call, or is an input."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        mask = MASK(x.shape[1], device=x.device) if mask is None else mask
        y: torch.Tensor = self.layers(x, mask=mask)
        return y


def flat(*example: torch.Tensor) -> flattening.FlatModule:
    torch.manual_seed(0)
    model = Encoder().eval()
    return flattening.FlatModule(model, flattening.flatten_inputs(model, example)).eval()


def captured(module: nn.Module, *example: torch.Tensor) -> Run:
    shapes: list[tuple[int | str, ...]] = [(2, "length", 8), ("length", "length")]
    specs = tuple(TensorSpec(f"x{i}", "float32", shape) for i, shape in enumerate(shapes[: len(example)]))
    program = capture.export_program(module, example, Contract("encoder", specs, (), {"length": Range(2, 16)}))
    run: Run = program.module(check_guards=False)
    return run


def traced(module: nn.Module, *example: torch.Tensor) -> Run:
    with torch.no_grad(), _tracing.warned():
        run: Run = _tracing.trace(module, example)
    return run


@pytest.mark.parametrize("export", [captured, traced])
def test_a_mask_made_in_the_call(export: Callable[..., Run]) -> None:
    module = flat(torch.randn(2, 5, 8))
    run = export(module, torch.randn(2, 5, 8))
    for length in (5, 2, 16):
        x = torch.randn(2, length, 8)
        torch.testing.assert_close(run(x), module(x))


@pytest.mark.parametrize("export", [captured, traced])
def test_another_mask_than_the_examples(export: Callable[..., Run]) -> None:
    """The example's mask is causal, and others are not."""
    example = torch.randn(2, 5, 8), MASK(5)
    module = flat(*example)
    run = export(module, *example)
    for mask in (torch.zeros(5, 5), MASK(5).T.contiguous(), MASK(5)):
        torch.testing.assert_close(run(example[0], mask), module(example[0], mask))


def test_a_mask_gets_the_dtype_of_the_queries_on_a_gpu() -> None:
    """On a GPU, torch reads a mask in float32 as if it were float16."""
    given = []

    def record(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: Any = None, **_: Any) -> Any:
        given.append(None if attn_mask is None else attn_mask.dtype)
        return query

    with FakeTensorMode(), mock.patch.object(torch.nn.functional, causal_masks.ATTENTION, record):
        for device in ("cuda", "cpu"):
            x = torch.empty(1, 2, 5, 8, dtype=torch.float16, device=device)
            mask = torch.empty(5, 5, device=device)
            with causal_masks.uncompared():
                attend = torch.nn.functional.scaled_dot_product_attention
                attend(x, x, x, mask)
                attend(x, x, x, attn_mask=mask > 0, dropout_p=0.0)
                attend(query=x, key=x, value=x, is_causal=True)
    assert given == [torch.float16, torch.bool, None, torch.float32, torch.bool, None]


def test_what_the_model_says_is_kept_and_torch_is_restored() -> None:
    usual = transformer._detect_is_causal_mask
    with causal_masks.uncompared():
        assert transformer._detect_is_causal_mask(None, True)
        assert not transformer._detect_is_causal_mask(MASK(3))
    assert transformer._detect_is_causal_mask is usual
    assert usual(MASK(3))


class Attention(nn.Module):
    """Calls the attention by its own name, and is causal if there is more than one query, which changes nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(x, x, x, is_causal=x.shape[1] > 1)


@pytest.mark.parametrize("export", [captured, traced])
def test_is_causal_may_depend_on_a_size(export: Callable[..., Run]) -> None:
    model = Attention()
    x = torch.randn(2, 5, 8)
    run = export(flattening.FlatModule(model, flattening.flatten_inputs(model, {"x": x})).eval(), x)
    for length in (5, 1, 7):
        x = torch.randn(2, length, 8)
        torch.testing.assert_close(run(x)[0], model(x))
