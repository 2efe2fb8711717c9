"""Broken recipes, each named after its fault."""

from __future__ import annotations

import os
import signal
import time

import torch
from recipes_shared import Mlp, inputs


class load_fails:
    sizes: dict[str, int] = {}
    inputs = staticmethod(inputs)

    @staticmethod
    def load(weights: str) -> torch.nn.Module:
        raise OSError("the weights are gone")


class load_gives_a_string:
    sizes: dict[str, int] = {}
    inputs = staticmethod(inputs)

    @staticmethod
    def load(weights: str) -> str:
        return "a model"


class no_inputs:
    sizes: dict[str, int] = {}

    @staticmethod
    def load(weights: str) -> torch.nn.Module:
        return Mlp()


class inputs_without_tensors:
    sizes: dict[str, int] = {}
    load = staticmethod(lambda weights: Mlp())
    inputs = staticmethod(lambda: {"x": 3})


class inputs_fail:
    sizes: dict[str, int] = {}
    load = staticmethod(lambda weights: Mlp())

    @staticmethod
    def inputs(batch: int = 1) -> torch.Tensor:
        raise RuntimeError("no data today")


class inputs_without_default:
    sizes: dict[str, int] = {}
    load = staticmethod(lambda weights: Mlp())

    @staticmethod
    def inputs(batch: int) -> torch.Tensor:
        return torch.randn(batch, 4)


class sizes_name_a_stranger:
    sizes = {"sequence": 8}
    load = staticmethod(lambda weights: Mlp())
    inputs = staticmethod(inputs)


class sizes_upside_down:
    sizes = {"batch": (8, 2)}
    load = staticmethod(lambda weights: Mlp())
    inputs = staticmethod(inputs)


class sizes_are_a_list:
    sizes = ["batch"]
    load = staticmethod(lambda weights: Mlp())
    inputs = staticmethod(inputs)


class size_that_nothing_follows:
    sizes = {"batch": 8}
    load = staticmethod(lambda weights: Mlp())

    @staticmethod
    def inputs(batch: int = 2) -> torch.Tensor:
        return torch.randn(2, 4)


class sizes_only_in_a_sum:
    sizes = {"past": (1, 8), "seq": (1, 8)}
    load = staticmethod(lambda weights: torch.nn.ReLU())

    @staticmethod
    def inputs(past: int = 3, seq: int = 2) -> torch.Tensor:
        return torch.randn(past + seq, 4)


class sizes_only_in_a_product(sizes_only_in_a_sum):
    @staticmethod
    def inputs(past: int = 3, seq: int = 2) -> torch.Tensor:
        return torch.randn(past * seq, 4)


class _Broken:
    """Base of recipes: the model is `model`."""

    model: type[torch.nn.Module]
    sizes = {"batch": (1, 4)}
    inputs = staticmethod(inputs)

    @classmethod
    def load(cls, weights: str) -> torch.nn.Module:
        torch.manual_seed(0)
        return cls.model()


class output_without_tensors(_Broken):
    class model(Mlp):
        def forward(self, x: torch.Tensor) -> dict[str, str]:
            return {"answer": "forty-two"}


class output_of_nothing(_Broken):
    class model(Mlp):
        def forward(self, x: torch.Tensor) -> dict[str, None]:
            return {"answer": None}


class forward_raises(_Broken):
    class model(Mlp):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("forward does not work")


class forward_segfaults(_Broken):
    class model(Mlp):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            os.kill(os.getpid(), signal.SIGSEGV)
            return x


class nan_segfaults(_Broken):
    class model(Mlp):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            recording = torch.compiler.is_exporting() or torch.jit.is_tracing()
            if not recording and bool(x.isnan().any()):
                os.kill(os.getpid(), signal.SIGSEGV)
            return super().forward(x)


class forward_hangs(_Broken):
    class model(Mlp):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            time.sleep(600)
            return x


class zeros_segfault(_Broken):
    class model(Mlp):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            recording = torch.compiler.is_exporting() or torch.jit.is_tracing()
            if not recording and bool((x == 0).all()):
                os.kill(os.getpid(), signal.SIGSEGV)
            return super().forward(x)


class trace_raises(_Broken):
    class model(Mlp):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if torch.jit.is_tracing():
                raise ValueError("not to be traced")
            return self.layers(x)


class trace_segfaults(_Broken):
    class model(Mlp):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if torch.jit.is_tracing():
                os.kill(os.getpid(), signal.SIGSEGV)
            return self.layers(x)


class trace_aborts(_Broken):
    class model(Mlp):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if torch.jit.is_tracing():
                os.abort()
            return self.layers(x)


class trace_eats_memory(_Broken):
    """Allocates a gigabyte at a time, until it is stopped or has 16."""

    class model(Mlp):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if torch.jit.is_tracing():
                self.eaten = [torch.ones(1 << 28) for _ in range(16)]
            return self.layers(x)


class gives_nan(_Broken):
    class model(Mlp):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x) * float("nan")


class trace_hangs(_Broken):
    class model(Mlp):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if torch.jit.is_tracing():
                time.sleep(600)
            return self.layers(x)


class capture_segfaults(_Broken):
    class model(Mlp):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if torch.compiler.is_exporting():
                print("the model is being exported", flush=True)
                os.kill(os.getpid(), signal.SIGSEGV)
            return self.layers(x)


class branch_on_data(_Broken):
    """torch.export rejects it; torch.jit.trace bakes in the branch of the example."""

    class model(Mlp):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = self.layers(x)
            return out if x.sum() > 1e9 else -out


class branch_on_data_with_stars(_Broken):
    """Both torch.export and torch.jit.script reject it."""

    class model(Mlp):
        def forward(self, *x: torch.Tensor) -> torch.Tensor:
            out = self.layers(x[0])
            return out if x[0].sum() > 0 else -out

    @staticmethod
    def inputs(batch: int = 2) -> tuple[torch.Tensor]:
        return (torch.randn(batch, 4),)


class batch_is_baked(_Broken):
    """torch.jit.trace fixes the number of rows of the example."""

    class model(Mlp):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.stack([self.layers(x[i]) for i in range(len(x))])
