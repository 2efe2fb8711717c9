"""Widening weights at each use is bit-identical to a model entirely in float64."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from exporter.core import memory
from exporter.evidence import eager
from exporter.model import widening

Tensors = tuple[torch.Tensor, ...]


@pytest.fixture(autouse=True)
def _everything_is_large(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(widening, "SMALL", 1)
    yield
    widening.allow(widening.EVERYTHING)


class Tied(nn.Module):
    """One weight with two names, like the embedding and head of a language model."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm, self.head = nn.Embedding(50, 16), nn.LayerNorm(16), nn.Linear(16, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> Tensors:
        return (self.head(self.norm(self.embedding(ids))),)


class Functional(nn.Module):
    """Weights used outside their modules: whole, sliced, multiplied with each other, and for their dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 24), nn.Linear(24, 16)
        self.register_buffer("scale", torch.rand(16))

    def forward(self, x: torch.Tensor) -> Tensors:
        product = self.b.weight @ self.a.weight  # float32 would round
        columns = x[:, 3:11] @ self.a.weight.t()[3:11]
        q, k = self.a.weight.chunk(2, dim=0)
        y = (x @ product).to(self.a.weight.dtype) * self.scale
        return y, columns, x @ q.t() + x @ k.t(), self.a.weight.softmax(-1).sum(0, keepdim=True) * x


class Inner(nn.Module):
    """Reads another module's weight, and calls a module's forward without its hooks."""

    def __init__(self, other: nn.Linear) -> None:
        super().__init__()
        self.borrowed = [other]
        self.own = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(self.own.forward(x), self.borrowed[0].weight)


class Borrows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lender = nn.Linear(16, 16)
        self.inner = Inner(self.lender)

    def forward(self, x: torch.Tensor) -> Tensors:
        return self.inner(x), self.lender(x)


class Encoder(nn.Module):
    """Uses torch's fast path, which reads the weights of its submodules."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor) -> Tensors:
        return (self.encoder(x),)


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, 4, 2, 2))

    def forward(self, x: torch.Tensor) -> Tensors:
        return (self.layers(x),)


class Recurrent(nn.Module):
    """Its weights are also in weak references and a list."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 8, batch_first=True)

    def forward(self, x: torch.Tensor) -> Tensors:
        return (self.lstm(x)[0],)


class Writes(nn.Module):
    """Changes a buffer at each call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(16))

    def forward(self, x: torch.Tensor) -> Tensors:
        self.mean.mul_(0.5).add_(x.mean(0))
        return (x - self.mean,)


def ids() -> torch.Tensor:
    return torch.arange(12).reshape(2, 6)


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


CASES: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    "tied": (Tied, ids()),
    "functional": (Functional, numbers(5, 16)),
    "borrows": (Borrows, numbers(5, 16)),
    "encoder": (Encoder, numbers(2, 6, 16)),
    "recurrent": (Recurrent, numbers(2, 5, 16)),
    "convolutions": (Convolutions, numbers(2, 3, 9, 9)),
}


def module_of(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make().eval().requires_grad_(False)


def reference(module: nn.Module, data: torch.Tensor) -> tuple[list[Tensors], str]:
    return eager.references(module, [(data,)], [eager.run(module, (data,), "cpu")])


def is_widened_at_each_use(module: nn.Module, data: torch.Tensor) -> Tensors:
    """Return the outputs. Raises Unable if it is impossible."""
    with widening.at_each_use(module) as others:
        assert others == []
        return eager.run(module, (data.double() if data.is_floating_point() else data,), "cpu")


@pytest.mark.parametrize("room", [0, 3000])
@pytest.mark.parametrize("case", CASES)
def test_the_result_is_bit_identical_to_the_whole_in_float64(case: str, room: int) -> None:
    make, data = CASES[case]
    module = module_of(make)
    whole, kind = reference(module, data)
    before = {name: (id(t), t.data_ptr(), type(t)) for name, t in module.state_dict(keep_vars=True).items()}
    widening.allow(room)
    found = is_widened_at_each_use(module, data)
    assert kind == "float64"
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(found, whole[0], strict=True))
    after = {name: (id(t), t.data_ptr(), type(t)) for name, t in module.state_dict(keep_vars=True).items()}
    assert after == before, "the same tensor objects"
    again, kind = reference(module, data)
    assert kind == "float64"
    assert all(torch.equal(a, b) for a, b in zip(again[0], whole[0], strict=True))


class Scripted(nn.Module):
    """TorchScript references its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.jit.script(nn.Linear(16, 16))

    def forward(self, x: torch.Tensor) -> Tensors:
        return (self.inner(x),)


@pytest.mark.parametrize(("make", "shape"), [(Scripted, (5, 16)), (Writes, (5, 16))])
def test_models_that_cannot_be_widened_at_each_use(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    data = numbers(*shape)
    whole, _ = reference(module_of(make), data)
    module = module_of(make)
    widening.allow(0)
    with pytest.raises(widening.Unable):
        is_widened_at_each_use(module, data)
    module = module_of(make)
    found, kind = reference(module, data)
    assert kind == "float64"
    assert torch.equal(found[0][0], whole[0][0])


def test_eager_is_the_reference_if_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free", lambda: 10)
    widening.allow(0)
    _, kind = reference(module_of(Scripted), numbers(5, 16))
    assert kind == "eager"


def test_complex_weights_are_held_in_complex128() -> None:
    class Spectral(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.phase = nn.Linear(512, 1024), nn.Parameter(torch.rand(512, 513, dtype=torch.complex64))

        def forward(self, x: torch.Tensor) -> Tensors:
            return (torch.fft.irfft(self.phase @ torch.fft.rfft(self.layer(x)).mT),)

    module, data = module_of(Spectral), numbers(5, 512)
    assert widening._bytes([module.phase]) == 16 * 512 * 513
    whole, kind = reference(module, data)
    assert kind == "float64"
    widening.allow(0)
    with widening.at_each_use(module) as others:
        assert any(one is module.phase for one in others)
        assert not any(one is module.layer.weight for one in others)
    again, kind = reference(module, data)
    assert kind == "float64"
    assert torch.equal(again[0][0], whole[0][0])


def test_it_works_after_torch_export() -> None:
    """torch.export leaves weak references to weights behind."""
    module, data = module_of(Functional), numbers(5, 16)
    _ = torch.export.export(module, (data,))
    whole, _ = reference(module, data)
    widening.allow(0)
    found = is_widened_at_each_use(module, data)
    assert all(torch.equal(a, b) for a, b in zip(found, whole[0], strict=True))


def test_only_one_weight_is_held_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    module = module_of(lambda: nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(8))))
    alive = most = 0
    usual = widening._Root.wide

    def counted(root: Any) -> torch.Tensor:
        nonlocal alive, most
        made = usual(root)
        alive += 1
        most = max(most, alive)

        def gone() -> None:
            nonlocal alive
            alive -= 1

        weakref.finalize(made, gone)
        return made

    monkeypatch.setattr(widening._Root, "wide", counted)
    widening.allow(0)
    is_widened_at_each_use(nn.Sequential(module, _Tuple()), numbers(3, 64))
    assert most == 1


class _Tuple(nn.Module):
    def forward(self, x: torch.Tensor) -> Tensors:
        return (x,)
