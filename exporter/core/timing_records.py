"""The records of latency, and of what else the machine did while it was measured."""

from __future__ import annotations

import math
from dataclasses import dataclass

from exporter.core.json_schema import described
from exporter.core.size_range import Range as Range

BEYOND = 10  # samples beyond a percentile, without which it says little more than the largest sample


def runs_for(percentile: float) -> int:
    """How many samples a percentile wants, so that BEYOND of them lie beyond it."""
    return math.ceil(round(BEYOND * 100 / (100 - percentile), 6))


@dataclass(frozen=True)
class MachineLoad:
    """What went on beside a measurement: shares of the CPUs that it might use.

    `others` is of other processes, `steal` of other guests of the host; `throttled` is the share of the time for which
    a quota stopped us, `hot` how often a core slowed down for heat. `load` is the load average at the end.
    """

    cpus: int = described("CPUs that it might use.", minimum=0)
    others: float = described("Share of them that other processes took.", minimum=0, maximum=1)
    steal: float = described("Share that other guests of the host took.", minimum=0, maximum=1)
    throttled: float = described("Share of the time for which a quota stopped it.", minimum=0, maximum=1)
    hot: int = described("How often a core slowed down for heat.", minimum=0)
    load: float = described("The load average at its end.", minimum=0)

    @property
    def lost(self) -> float:
        """The share of the CPUs that was not to be had."""
        return min(self.others + self.steal + self.throttled, 1.0)

    @property
    def busy(self) -> bool:
        """Whether that is more than a quiet machine's own upkeep."""
        return self.others > 0.1 or self.steal > 0.02 or self.throttled > 0.01 or self.hot > 0

    def describe(self) -> str:
        """What there was, in words."""
        said = [f"other processes took {self.others:.0%} of {self.cpus} CPUs"] if self.others >= 0.01 else []
        said += [f"other guests of the host {self.steal:.0%}"] if self.steal >= 0.005 else []
        said += [f"a quota stopped it for {self.throttled:.0%} of the time"] if self.throttled >= 0.005 else []
        said += [f"cores slowed down for heat {self.hot} times"] if self.hot else []
        return ", ".join([*said, f"load {self.load:.1f}"])


@dataclass(frozen=True)
class Timing:
    """Steady-state latency of one session. `speedup` is eager's median over this one's, with its 95% interval.

    A percentile is None where fewer than BEYOND samples are above it.
    """

    median_ms: float = described("Median.", minimum=0)
    p90_ms: float | None = described("90th percentile; null where fewer than 10 samples are above it.", minimum=0)
    p99_ms: float | None = described("99th percentile; null where fewer than 10 samples are above it.", minimum=0)
    min_ms: float = described("Fastest call.", minimum=0)
    max_ms: float = described("Slowest call.", minimum=0)
    ci95_ms: tuple[float, float] = described("95% interval of the median: low, high.", minimum=0)
    runs: int = described("Timed calls.", minimum=1)
    stable: bool = described("Whether the interval of the ratio to eager came under 3% either way within the budget.")
    speedup: float | None = described("Eager's median over this one's.", None, minimum=0)
    speedup_ci95: tuple[float, float] | None = described("95% interval of the speedup: low, high.", None, minimum=0)
    outliers: int = described("Calls whose modified z-score is above 3.5.", 0, minimum=0)
