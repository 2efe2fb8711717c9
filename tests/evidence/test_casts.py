"""References of models that cast to a dtype themselves."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from exporter.evidence import casts, eager
from exporter.model import widening
from exporter.model.tensors import Tensors

Cast = Callable[[torch.Tensor], torch.Tensor]


class Half(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.half()


class Flat(torch.nn.Sequential):
    """Returns a tuple, as modules of exporter do."""

    def forward(self, x: torch.Tensor) -> Tensors:
        return (super().forward(x),)


class Casting(torch.nn.Module):
    """Computes in float16 and returns float32."""

    def __init__(self, cast: Cast) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(8, 4).half()
        self.cast = cast

    def forward(self, x: torch.Tensor) -> Tensors:
        return (self.layer(self.cast(x)).float(),)


@pytest.mark.parametrize(
    ("cast", "exact"),
    [
        (torch.Tensor.half, torch.Tensor.double),
        (lambda x: x.to(torch.float16), torch.Tensor.double),
        (lambda x: x.type(torch.float16), torch.Tensor.double),
        (lambda x: x.half() * torch.full((8,), 3.0, dtype=torch.float16), lambda x: x.double() * 3),
        (lambda x: x.softmax(-1, dtype=torch.float32).half(), lambda x: x.double().softmax(-1)),
    ],
)
def test_a_model_that_casts_has_references_in_float64(cast: Cast, exact: Cast) -> None:
    module, x = Casting(cast).eval(), torch.randn(3, 8)
    outputs = eager.run(module, (x,), "cpu")
    (found,), kind = eager.references(module, [(x,)], [outputs])
    layer = module.layer
    expected = torch.nn.functional.linear(exact(x), layer.weight.double(), layer.bias.double())
    assert kind == "float64"
    assert layer.weight.dtype == torch.float16
    torch.testing.assert_close(found[0], expected, rtol=1e-12, atol=1e-12)


def test_casts_to_complex_numbers_are_widened_too() -> None:
    class Complex(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 4, dtype=torch.complex64)

        def forward(self, x: torch.Tensor) -> Tensors:
            return (self.layer(x.to(torch.complex64)),)

    module, x = Complex().eval(), torch.randn(3, 8)
    (found,), kind = eager.references(module, [(x,)], [eager.run(module, (x,), "cpu")])
    weight, bias = (one.to(torch.complex128) for one in module.layer.parameters())
    assert kind == "float64"
    assert casts.are_changed(module)
    torch.testing.assert_close(found[0], x.to(torch.complex128) @ weight.T + bias, rtol=1e-12, atol=1e-12)


def test_outputs_of_other_dtypes_do_not_matter() -> None:
    class Several(Casting):
        def forward(self, x: torch.Tensor) -> Tensors:
            (y,) = super().forward(x)
            return y, y > 0, y.argmax(-1), torch.complex(y, y)

    module, x = Several(torch.Tensor.half).eval(), torch.randn(3, 8)
    outputs = eager.run(module, (x,), "cpu")
    _, kind = eager.references(module, [(x,)], [outputs])
    assert kind == "float64"


def test_casts_stay_as_they_are_where_they_do_no_harm() -> None:
    """Such as those of a model that rounds on purpose."""

    class Rounding(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Tensors:
            return (x.half().to(x.dtype),)

    module, x = Rounding(), torch.randn(3, 8)
    (found,), kind = eager.references(module, [(x,)], [(x.half().float(),)])
    assert kind == "float64"
    assert torch.equal(found[0], x.half().double())


def test_a_model_that_fails_anyway_is_its_own_reference() -> None:
    class OnlyHalf(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Tensors:
            assert x.half().dtype == torch.float16
            assert x.dtype == torch.float32
            return (x,)

    module, x = OnlyHalf(), torch.randn(3, 8)
    found, kind = eager.references(module, [(x,)], [(x,)])
    assert kind == "eager"
    assert torch.equal(found[0][0], x.double())
    assert module not in casts._casting


def test_nan_and_infinity_are_tried_with_the_casts_that_the_references_needed() -> None:
    module, x = Casting(torch.Tensor.half).eval(), torch.randn(3, 8)
    eager.references(module, [(x,)], [eager.run(module, (x,), "cpu")])
    ((found,),) = eager.attempts(module, [(x,)], 60)
    assert isinstance(found, torch.Tensor)
    assert found.dtype == torch.float64


def test_a_model_that_needs_its_casts_is_its_own_reference() -> None:
    class Codes(Casting):
        def forward(self, x: torch.Tensor) -> Tensors:
            codes = (x * 1000).half().long() % 7
            return (super().forward(x)[0] + codes[:, :4],)

    module, x = Codes(torch.Tensor.half).eval(), torch.randn(3, 8)
    outputs = eager.run(module, (x,), "cpu")
    (found,), kind = eager.references(module, [(x,)], [outputs])
    assert kind == "eager"
    assert torch.equal(found[0], outputs[0].double())


def test_weights_are_still_widened_at_each_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Casts are not why weights that do not fit into memory in float64 would have to be held there."""
    monkeypatch.setattr(widening._allowed, "left", 1000)
    module, x = Flat(Half(), torch.nn.Linear(1024, 1024)).half().eval(), torch.randn(3, 1024)
    _, kind = eager.references(module, [(x,)], [eager.run(module, (x,), "cpu")])
    assert (kind, widening._allowed.left) == ("float64", 1000)
