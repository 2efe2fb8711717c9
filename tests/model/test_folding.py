"""Batch norms folded into convolutions of exported programs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from exporter.model import folding

ROWS = torch.export.Dim.DYNAMIC


def exported(model: nn.Module, *shape: int) -> torch.export.ExportedProgram:
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)  # type: ignore[union-attr]
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.affine:
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
    with torch.no_grad():
        return torch.export.export(model.eval(), (torch.randn(3, *shape),), dynamic_shapes=({0: ROWS},), strict=False)


def norms(program: torch.export.ExportedProgram) -> int:
    return sum(node.target is torch.ops.aten.batch_norm.default for node in program.graph.nodes)


def same(one: torch.export.ExportedProgram, other: torch.export.ExportedProgram, *shape: int) -> None:
    x = torch.randn(5, *shape)
    torch.testing.assert_close(other.module()(x), one.module()(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU()), (3, 8, 8)),
        (nn.Sequential(nn.Conv2d(4, 4, 3, groups=2, padding="same"), nn.BatchNorm2d(4)), (4, 8, 8)),
        (nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4, affine=False), nn.Conv1d(4, 2, 1)), (3, 8)),
        (nn.Sequential(nn.Conv3d(1, 2, 2), nn.BatchNorm3d(2, eps=0.1)), (1, 4, 4, 4)),
    ],
)
def test_a_batch_norm_after_a_convolution_is_folded(model: nn.Module, shape: tuple[int, ...], tmp_path: Path) -> None:
    torch.manual_seed(0)
    program = exported(model, *shape)
    folded = folding.fold_batch_norms(program)
    assert (norms(program), norms(folded)) == (1, 0)
    assert len(folded.state_dict) < len(program.state_dict)
    same(program, folded, *shape)
    torch.export.save(folded, tmp_path / "folded.pt2")
    same(program, torch.export.load(tmp_path / "folded.pt2"), *shape)


class Twice(nn.Module):
    """Uses the result of the convolution twice, or the convolution itself."""

    def __init__(self, layer_twice: bool) -> None:
        super().__init__()
        self.layer_twice = layer_twice
        self.conv, self.norm = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        return self.norm(y) + (self.conv(x * 2) if self.layer_twice else y)


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (Twice(False), (3, 8, 8)),
        (Twice(True), (3, 8, 8)),
        (nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4, affine=False)), (3, 8, 8)),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False)), (3, 8, 8)),
        (nn.Sequential(nn.ReLU(), nn.BatchNorm2d(3)), (3, 8, 8)),
    ],
)
def test_others_stay(model: nn.Module, shape: tuple[int, ...]) -> None:
    program = exported(model, *shape)
    assert norms(program) == 1
    assert folding.fold_batch_norms(program) is program


class Attention(nn.Module):
    """Queries, keys and values of one input, as most transformers compute them; `flat` needs contiguous ones."""

    def __init__(self, flat: bool = False, bias: bool = True) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(8, 8, bias), nn.Linear(8, 4, bias), nn.Linear(8, 4, bias)
        self.last = nn.Linear(8, 2)
        self.flat = flat

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.query(x), self.key(x), self.value(x)
        heads = query.view(-1) if self.flat else query.view(*query.shape[:2], 2, 4).transpose(1, 2)
        return heads.sum() + self.last(query) + key.sum(-1, keepdim=True) * value.mean(-1, keepdim=True)


def linears(program: torch.export.ExportedProgram) -> int:
    return sum(node.target is torch.ops.aten.linear.default for node in program.graph.nodes)


@pytest.mark.parametrize("bias", [True, False])
def test_linear_layers_of_one_input_are_merged(bias: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    program = exported(Attention(bias=bias), 3, 8)
    merged = folding.merge_linears(program)
    assert (linears(program), linears(merged)) == (4, 2)
    assert len(merged.state_dict) == len(program.state_dict) - 2 * (1 + bias)
    same(program, merged, 3, 8)
    torch.export.save(merged, tmp_path / "merged.pt2")
    same(program, torch.export.load(tmp_path / "merged.pt2"), 3, 8)
    fake = next(node.meta["val"] for node in merged.graph.nodes if node.name == "getitem")
    assert fake.stride(-2) == 16


class Masked(nn.Module):
    """Attention with a mask, which fake tensors of a GPU cannot compute for a dynamic size in torch 2.11."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (layer(x).unflatten(-1, (2, 4)).mT for layer in (self.query, self.key, self.value))
        mask = torch.ones(x.shape[0], 1, 4, 4, dtype=torch.bool)
        return nn.functional.scaled_dot_product_attention(query, key, value, mask)


def test_layers_of_attention_are_merged_where_fake_attention_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    program = exported(Masked(), 3, 8)
    computed = FakeTensorProp.run_node

    def run_node(self: FakeTensorProp, n: torch.fx.Node) -> object:
        if n.target is torch.ops.aten.scaled_dot_product_attention.default:
            raise RuntimeError("SymIntArrayRef expected to contain only concrete integers")
        return computed(self, n)

    monkeypatch.setattr(FakeTensorProp, "run_node", run_node)
    merged = folding.merge_linears(program)
    assert (linears(program), linears(merged)) == (3, 1)
    same(program, merged, 3, 8)


def test_layers_are_not_merged_if_an_operator_needs_contiguous_outputs(capsys: pytest.CaptureFixture[str]) -> None:
    program = exported(Attention(flat=True), 3, 8)
    assert folding.merge_linears(program) is program
    assert "linear layers with the same input are not merged" in capsys.readouterr().err


def test_layers_that_share_a_weight_are_not_merged() -> None:
    model = Attention()
    model.value.weight = model.key.weight
    program = exported(model, 3, 8)
    assert linears(folding.merge_linears(program)) == 4
