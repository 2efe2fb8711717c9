"""Models that register hooks in their first call."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from exporter.model.state import first_call
from exporter.model.state.snapshot import Snapshot


class Recording(nn.Module):
    """Registers a hook in its first call, which records a hidden state, and counts its calls."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.ready = False
        self.seen: list[torch.Tensor] = []
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.ready:
            self.inner.register_forward_hook(self._record)
            self.ready = True
        self.calls += 1
        self.seen.clear()
        self.inner(x)
        return torch.stack(self.seen)

    def _record(self, module: nn.Module, args: Any, output: torch.Tensor) -> None:
        self.seen.append(output)


def test_a_snapshot_removes_hooks_together_with_the_flag() -> None:
    model, x = Recording(), torch.randn(2, 3)
    held = Snapshot(model)
    assert not held.hooked
    for _ in range(3):
        assert len(model(x)) == 1
        held.restore()
    assert held.hooked
    assert not model.ready
    assert not model.inner._forward_hooks


def test_hooks_and_flags_are_kept_and_everything_else_is_undone() -> None:
    model, x = Recording(), torch.randn(2, 3)
    held = first_call.set_up(model, Snapshot(model), lambda: model(x))
    assert model.ready
    assert len(model.inner._forward_hooks) == 1
    assert model.calls == 0
    assert model.seen == []
    model(x)
    held.restore()
    assert not held.hooked
    assert len(model.inner._forward_hooks) == 1
    assert model.calls == 0


def test_hooks_of_one_call_need_nothing() -> None:
    class Brief(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> Any:
            handle = self.inner.register_forward_hook(lambda module, args, output: output * 2)
            try:
                return self.inner(x)
            finally:
                handle.remove()

    model = Brief()
    held = Snapshot(model)
    model(torch.randn(2, 3))
    held.restore()
    assert not held.hooked
