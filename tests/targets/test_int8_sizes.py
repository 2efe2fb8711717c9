"""Linear layers in int8 whose input is transposed and has dynamic sizes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support import packages

from exporter.targets import _int8, _int8_sizes


class Turned(torch.nn.Module):
    """Applies a layer to the channels of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (self.layer(x.transpose(1, 2)),)


@pytest.mark.filterwarnings("ignore:To copy construct:UserWarning")  # from inductor
def test_a_transposed_input_is_multiplied_in_int8(tmp_path: Path) -> None:
    module, data = Turned().eval(), (torch.randn(3, 64, 10),)
    shapes = ({0: torch.export.Dim("batch", max=8), 2: torch.export.Dim("length", max=64)},)
    with torch.no_grad():
        graph = torch.export.export(module, data, dynamic_shapes=shapes).module(check_guards=False)
        quantized = _int8.pt2e(graph, [data], narrow=True)
        program = torch.export.export(quantized, data, dynamic_shapes=(shapes,))
        made = packages.build(program, tmp_path / "net.pt2", freezing=True)
        assert "qlinear_pointwise" in packages.sources(made), "without the workaround, freezing raises TypeError"
        loaded = torch._inductor.aoti_load_package(str(made))
        for batch, length in ((3, 10), (1, 7), (5, 33)):
            x = torch.randn(batch, 64, length)
            torch.testing.assert_close(loaded(x)[0], quantized(x)[0], rtol=1e-5, atol=1e-5)


def test_sizes_are_compared_by_value() -> None:
    node = SimpleNamespace(meta={"val": 7})
    seen: list[dict[str, object]] = []
    match = SimpleNamespace(kwargs={"act_expand_size": [node, 3], "x": node})
    assert _int8_sizes._with_values(lambda one: seen.append(dict(one.kwargs)) or True)(match)
    assert seen == [{"act_expand_size": [7, 3], "x": node}]
    assert match.kwargs == {"act_expand_size": [node, 3], "x": node}
