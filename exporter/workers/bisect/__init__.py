"""Find the node of the exported program at which a variant goes wrong.

This is the parent's side, which never imports torch. A child (`exporter.workers.bisect.child`) builds parts of the
program in the same way as the variant and compares their results with float64.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from exporter.core.records import MetricRecord
from exporter.workers.children import SIDE_BY_SIDE, Zygote
from exporter.workers.messages import Job

SCHEMA = 1
NEARLY_ALL = 0.9  # of the model's weights
Verdict = Literal[
    "rounding",
    "reduced precision",
    "converter",
    "compiler",
    "runtime",
    "constant baked in",
    "altered artifact",
    "not located",
]


@dataclass(frozen=True)
class Node:
    """A node of the exported program.

    Both errors are root mean squares against float64, as multiples of eager's own: `introduced` by the node alone when
    its inputs are exact, and `inherited` as its result stands in the run. None if it was not measured or is not finite.
    """

    name: str
    operator: str
    module: str = ""
    place: str = ""
    introduced: float | None = None
    inherited: float | None = None


@dataclass(frozen=True)
class Fix:
    """The options with which a failing variant passes: some layers in floating point, a setting, or a fallback.

    The search tries to do without some of the layers. `slower` is the median latency of the variant with these options
    as a multiple of its latency without them, measured in turn at the sizes of the capture; None if it does not run
    without them. `kept_weights` is the share of the model's weights that are in the layers of `keep_float`.
    """

    keep_float: tuple[str, ...] = ()
    slower: float | None = None
    inductor: tuple[str, ...] = ()
    fallback: tuple[str, ...] = ()
    graph_optimization: str = "all"
    kept_weights: float = 0.0

    @property
    def is_pointless(self) -> bool:
        """Return whether hardly anything of the variant's precision is left."""
        return self.kept_weights >= NEARLY_ALL

    @property
    def options(self) -> str:
        """Return the options for `exporter export`."""
        words = [word for name in self.keep_float for word in ("--keep-float", name)]
        words += [word for one in self.inductor for word in ("--inductor", one)]
        words += [word for one in self.fallback for word in ("--fallback", one)]
        words += ["--graph-optimization", self.graph_optimization] if self.graph_optimization != "all" else []
        return shlex.join(words)


@dataclass(frozen=True)
class Bisection:
    """The result for one variant: a verdict, a sentence that explains it, and the nodes to blame, most suspect first.

    `passes` says that the variant's outputs are within the tolerance and nothing is wrong. `case` is the golden's case
    that was examined, and `ratio` its error as a multiple of eager's own; `not_finite` is the first node with a NaN or
    infinity that the reference lacks. `builds` counts how often the variant was built, for a program of `size` nodes.
    `files` are the names of the files that were written.
    """

    model: str
    variant: str
    case: str
    verdict: Verdict
    sentence: str
    passes: bool = False
    ratio: float | None = None
    nodes: tuple[Node, ...] = ()
    not_finite: Node | None = None
    builds: int = 0
    size: int = 0
    notes: tuple[str, ...] = ()
    remedy: str = ""
    fix: Fix | None = None
    files: tuple[str, ...] = ()
    schema: int = SCHEMA


@dataclass(frozen=True)
class Asked:
    """What to examine: a target's artifact (None for a variant compiled just in time), and where to write files.

    `fix` asks for options with which the variant passes. If the variant passes in Python, it is examined in C++, by
    `runner`, the path of exporter-run. A variant that does not meet the bounds of `metric` does not pass.
    """

    target: str
    variant: str
    artifact: Path | None
    golden: Path
    out: Path
    fix: bool = False
    runner: Path | None = None
    metric: MetricRecord | None = None


def run(job: Job, asked: Asked, log: Path, begun: Callable[[str], None], timeout: float) -> Bisection:
    """Examine one variant. `begun` is called with each step; `timeout` is in seconds and limits each step.

    Raises the same errors as `exporter export` if the model does not load or run.
    """
    with Zygote(SIDE_BY_SIDE) as zygote:
        arguments = {"job": job, "asked": asked}
        child = zygote.spawn(f"bisect {asked.variant}", "exporter.workers.bisect.child:examine", arguments, log)
        while step := child.expect("step", timeout):
            begun(step)
        found: Bisection = child.expect("result", timeout)
        return found
