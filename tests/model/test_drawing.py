"""Other values for a model's inputs."""

from __future__ import annotations

import torch

from exporter.model.drawing import drawn


def test_shapes_dtypes_and_ranges_stay() -> None:
    data = (torch.randn(2, 3), torch.tensor([1, 5, 2]), torch.tensor(True), torch.randn(2).to(torch.complex64))
    generator = torch.Generator().manual_seed(0)
    made = [drawn(data, generator) for _ in range(50)]
    for one in made:
        assert [(t.shape, t.dtype) for t in one] == [(t.shape, t.dtype) for t in data]
        assert set(one[1].tolist()) <= {1, 2, 3, 4, 5}
        assert torch.equal(one[3], data[3])
    assert {bool(one[2]) for one in made} == {True, False}
    sizes = [float(one[0].abs().max()) for one in made]
    assert min(sizes) < 0.1
    assert max(sizes) > 10


def test_the_same_generator_draws_the_same() -> None:
    data = (torch.randn(4), torch.arange(4))
    first, second = (drawn(data, torch.Generator().manual_seed(3)) for _ in range(2))
    assert all(map(torch.equal, first, second))
