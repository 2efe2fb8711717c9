"""TorchScript modules that multiply by weights packed for FBGEMM, which reads them in float16 and computes in float32.

TorchScript's serializer would write a packed weight in float32. These modules write it in its own dtype, and pack it
again when the file is loaded. FBGEMM has no int8 weights for float32 inputs, but float16 holds these integers exactly.
"""

from __future__ import annotations

import torch


class Halves(torch.nn.Module):
    """Multiplies rows by a float16 weight, whose rows are the output channels."""

    def __init__(self, small: torch.Tensor) -> None:
        super().__init__()
        self.packed = torch.ops.quantized.linear_prepack_fp16(small.float(), None)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the products, in float32."""
        product: torch.Tensor = torch.ops.quantized.linear_dynamic_fp16(rows, self.packed)
        return product

    @torch.jit.export
    def __getstate__(self) -> tuple[torch.Tensor, bool]:
        weight, _ = torch.ops.quantized.linear_unpack_fp16(self.packed)
        return weight.to(torch.float16), self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[torch.Tensor, bool]) -> None:
        self.packed = torch.ops.quantized.linear_prepack_fp16(state[0].to(torch.float32), None)
        self.training = state[1]


class Scaled(torch.nn.Module):
    """Multiplies rows by an int8 weight, and each output channel by its scale."""

    def __init__(self, small: torch.Tensor, scale: torch.Tensor) -> None:
        super().__init__()
        self.packed = torch.ops.quantized.linear_prepack_fp16(small.float(), None)
        self.scale = scale

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the products, in float32."""
        product: torch.Tensor = torch.ops.quantized.linear_dynamic_fp16(rows, self.packed)
        return product * self.scale

    @torch.jit.export
    def __getstate__(self) -> tuple[torch.Tensor, torch.Tensor, bool]:
        weight, _ = torch.ops.quantized.linear_unpack_fp16(self.packed)
        return weight.to(torch.int8), self.scale, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[torch.Tensor, torch.Tensor, bool]) -> None:
        self.packed = torch.ops.quantized.linear_prepack_fp16(state[0].to(torch.float32), None)
        self.scale = state[1]
        self.training = state[2]


def scripted(small: torch.Tensor, scale: torch.Tensor | None) -> torch.jit.ScriptModule:
    """Return the scripted module for a stored weight."""
    made = Halves(small) if scale is None else Scaled(small, scale)
    script: torch.jit.ScriptModule = torch.jit.script(made.eval())
    return script
