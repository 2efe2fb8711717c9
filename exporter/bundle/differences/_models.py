"""Compare two artifacts of a target that can separate the graph from the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from exporter.bundle.differences._finding import Finding
from exporter.bundle.differences._numbers import apart
from exporter.core.errors import ArtifactError

Parts = tuple[bytes, list[tuple[str, Any]]]


def compare(old: Path, new: Path, parts: Callable[[Path], Parts]) -> Iterator[Finding]:
    """Compare two artifacts and their weights: first graphs and shapes, then numbers."""
    try:
        (before, weights), (after, twins) = map(parts, (old, new))
    except ArtifactError as error:
        yield "differs", str(error)
        return
    if before != after:
        yield "differs", "the graph"
    elif [weight.shape for _, weight in weights] != [twin.shape for _, twin in twins]:
        yield "differs", "shapes of weights"
    else:
        for (_, weight), (name, twin) in zip(weights, twins, strict=True):
            if weight.tobytes() != twin.tobytes():
                yield "numbers", f"{name or 'a constant'}: {apart(weight, twin)}"
