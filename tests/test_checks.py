"""What is found of a session beside its outputs."""

from __future__ import annotations

import pytest

from exporter import checks, environment
from exporter.records import SessionRecord


@pytest.mark.parametrize(
    ("device", "said", "grown"),
    [
        ("cuda:1", [100.0, 350.0], 250.0),
        ("cuda:1", [100.0, 90.0], 0.0),
        ("cuda:1", [None], None),
        ("cuda:1", [100.0, None], None),
        ("cpu", [], None),
    ],
)
def test_memory_of_the_gpu(
    monkeypatch: pytest.MonkeyPatch, device: str, said: list[float | None], grown: float | None
) -> None:
    """It is asked for before and after, of that GPU; never on the CPU."""
    asked: list[str] = []
    answers = iter([*said, None])

    def ask(device: str) -> float | None:
        asked.append(device)
        return next(answers)

    monkeypatch.setattr(environment, "gpu_memory_mb", ask)
    record, _ = checks.watch_gpu_memory(device, lambda: (SessionRecord("python", "passed"), None))
    assert record.gpu_mb == grown
    assert asked == [device] * len(said)
