"""Changes the values of the example inputs, because a branch in the model may depend on them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from exporter.core.parity_records import Tolerance
from exporter.core.tolerances import OutputTolerances
from exporter.model.flattening import dtype_name
from exporter.model.tensors import Tensors, in_float64, is_inexact

Change = Callable[[torch.Tensor], torch.Tensor]


def _reversed(tensor: torch.Tensor) -> torch.Tensor:
    """Reverse the last dimension, except of offsets such as 0, 2, 5, 9: models rely on their order.

    Positions such as 0, 1, 2, 3 look like offsets too; masks do not.
    """
    several = tensor.dim() == 1 and len(tensor) > 1 and tensor.dtype != torch.uint8
    if several and tensor[0] == 0 and tensor[-1] > 1 and bool((tensor.diff() >= 0).all()):
        return tensor
    return tensor.flip(-1) if tensor.dim() else tensor


def _padded(mask: torch.Tensor) -> torch.Tensor:
    """Set the second half of a mask's first row to the other value, as padding does, if all its values are the same.

    A tensor of integers is a mask if they are all 1.
    """
    same = mask.dim() > 0 and mask.shape[-1] > 1 and mask.numel() > 0 and bool((mask == mask.flatten()[0]).all())
    if not same or (mask.dtype != torch.bool and mask.flatten()[0] != 1):
        return mask
    made = mask.clone()
    made[(0,) * (mask.dim() - 1)][mask.shape[-1] // 2 :] = not mask.flatten()[0]
    return made


# One change for floating tensors and one for all others. The latter hold indices and masks, so their values stay within
# the range of the example's, except those of masks that have only one value.
LARGE = "large"
CHANGES: dict[str, tuple[Change, Change]] = {
    "zeros": (torch.zeros_like, lambda t: t.amin().expand_as(t).clone() if t.numel() else t),
    "ones": (torch.ones_like, lambda t: t.amax().expand_as(t).clone() if t.numel() else t),
    "negative": (lambda t: -t.abs(), _reversed),
    LARGE: (lambda t: t * 100, lambda t: t),
    "tiny": (lambda t: t.clamp(-1, 1) * (torch.finfo(t.dtype).tiny / 2), lambda t: t),  # below the normal numbers
    "padded": (lambda t: t, _padded),
}
PERTURBATION, ROUNDINGS = 1e-6, 8  # relative: the maximum, and the multiple of the dtype's epsilon


def changed(data: Tensors) -> dict[str, Tensors]:
    """Return the inputs with other values, by the name of the change. Changes without effect are left out."""
    made: dict[str, Tensors] = {}
    for name, (of_floats, of_others) in CHANGES.items():
        new = tuple(of_floats(t) if t.is_floating_point() else _integral(of_others, t) for t in data)
        if not any(_equal(new, old) for old in (data, *made.values())):
            made[name] = new
    return made


def perturbed(data: Tensors, sign: int) -> Tensors:
    """Return the inputs with noise the size of rounding errors added to inexact tensors, times `sign` (1 or -1)."""
    generator = torch.Generator().manual_seed(0)

    def noisy(t: torch.Tensor) -> torch.Tensor:
        if t.is_complex():
            return torch.view_as_complex(noisy(torch.view_as_real(t.resolve_conj())))
        noise = torch.randn(t.shape, generator=generator).to(t)
        return t + sign * _rounding(t.dtype) * (t.abs() + 1) * noise

    return tuple(noisy(t) if is_inexact(t) else t for t in data)


def _rounding(dtype: torch.dtype) -> float:
    return min(PERTURBATION, ROUNDINGS * torch.finfo(dtype).eps)


def settled(outputs: Tensors, again: Tensors, tolerance: OutputTolerances) -> bool:
    """Return whether the outputs are finite and agree within the tolerance of their dtype.

    Outputs that rounding decides prove nothing about an artifact.
    """
    pairs = zip(outputs, again, strict=True)
    return all(a.shape == b.shape and _close(a, b, tolerance.of(dtype_name(a.dtype))) for a, b in pairs)


def _close(a: torch.Tensor, b: torch.Tensor, tolerance: Tolerance) -> bool:
    if not is_inexact(a):
        return torch.equal(a, b)
    finite = bool(a.isfinite().all())
    return finite and torch.allclose(in_float64(a), in_float64(b), rtol=tolerance.rtol, atol=tolerance.atol)


def _integral(change: Change, tensor: torch.Tensor) -> torch.Tensor:
    """Apply a change to a tensor of integers or booleans. Complex tensors have no order and are returned unchanged."""
    if tensor.is_complex():
        return tensor
    is_bool = tensor.dtype == torch.bool and change is not _padded
    return change(tensor.byte()).bool() if is_bool else change(tensor)


def _equal(one: Tensors, other: Tensors) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
