"""Numbers combined with tensors of another dtype, for torch.onnx.export."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from exporter.model import type_promotion

X, N = torch.tensor([[-1.0, 0.5, 9.0], [2.0, 0.0, -3.0]]), torch.tensor([[3, 1, 7], [0, 2, 5]])


class Calls(torch.nn.Module):
    def __init__(self, function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return self.function(x, n)


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x, n: x.abs().clamp(1, 8.0), id="the cutoffs of PyanNet's filters"),
        pytest.param(lambda x, n: 1.0 - n, id="the mask of XLNet"),
        pytest.param(lambda x, n: n.clamp(max=2, min=0.5), id="integers between a float and an integer"),
        pytest.param(lambda x, n: n.clamp(0.5, n.shape[0]), id="a size is the bound of integers"),
        pytest.param(lambda x, n: x.clamp(n.shape[0] - 1, 1.5), id="a size is one of two bounds"),
        pytest.param(lambda x, n: torch.rsub(n, 2.5, alpha=3), id="a factor"),
        pytest.param(lambda x, n: 7.0 // (n + 1), id="whole division of a number"),
        pytest.param(lambda x, n: n.shape[0] / 2 - n, id="a size halved"),
        pytest.param(
            lambda x, n: torch.cond(x.sum() > 0, lambda v: 1.0 - v, lambda v: v + 0.5, (n,)), id="in a branch"
        ),
    ],
)
def test_torch_translates_it_with_the_same_result(
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> None:
    from torch.onnx._internal.exporter import _core, _registration

    model, registry = Calls(function), _registration.ONNXRegistry.from_torchlib()
    rows = {0: torch.export.Dim.DYNAMIC}

    def prepared(explicit: bool) -> torch.export.ExportedProgram:
        program = torch.export.export(model, (X, N), dynamic_shapes=(rows, rows), strict=False)
        if explicit:
            type_promotion.make_explicit(program)
        return _core._prepare_exported_program_for_export(program, registry=registry)

    with pytest.raises(RuntimeError, match="Cannot find a compatible OpOverload"):  # otherwise it is not needed
        prepared(False)
    made = prepared(True).module()
    for x, n in ((X, N), (X.repeat(2, 1), N.repeat(2, 1))):
        got, want = made(x, n), model(x, n)
        assert got.dtype == want.dtype
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("number", [0.7, -0.1, 1 / 3, 257])
@pytest.mark.parametrize("name", ["lt", "le", "gt", "ge", "eq", "ne"])
def test_a_comparison_in_float32_agrees_with_eager_in_half_precision(
    name: str, number: float, dtype: torch.dtype
) -> None:
    compare = getattr(torch, name)
    rounded = torch.tensor(number, dtype=dtype)
    x = torch.stack([rounded, *(torch.nextafter(rounded, torch.tensor(end, dtype=dtype)) for end in (-999.0, 999.0))])
    program = torch.export.export(Calls(lambda x, n: compare(x, number)), (x, N))
    type_promotion.make_explicit(program)
    (node,) = [node for node in program.graph.nodes if node.target in type_promotion.COMPARISONS]
    assert torch.equal(compare(x.float(), node.args[1]), compare(x, number))


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("boolean", [False, True])
def test_masks_of_attention_get_the_dtype_of_the_queries(by_name: bool, boolean: bool) -> None:
    def attend(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        mask = n > 1 if boolean else n.float() - 5
        attention = torch.nn.functional.scaled_dot_product_attention
        return attention(x, x, x, attn_mask=mask) if by_name else attention(x, x, x, mask)

    x, n = torch.randn(2, 3, 8).half(), torch.arange(9).reshape(3, 3)
    program = torch.export.export(Calls(attend), (x, n))
    type_promotion.make_explicit(program)
    (node,) = [node for node in program.graph.nodes if node.target is type_promotion.ATTENTION]
    mask = node.kwargs.get("attn_mask") or node.args[3]
    assert mask.meta["val"].dtype == (torch.bool if boolean else torch.float16)
    torch.testing.assert_close(program.module()(x, n), attend(x, n), rtol=1e-2, atol=1e-2)
