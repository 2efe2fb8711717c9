"""The records of latency, and of other load on the machine during the measurement."""

from __future__ import annotations

import math
from dataclasses import dataclass

from exporter.core.json_schema import described
from exporter.core.size_range import Range as Range

BEYOND = 10  # samples required beyond a percentile; with fewer it is close to the maximum


def runs_for(percentile: float) -> int:
    """Return how many samples a percentile needs, so that BEYOND of them lie beyond it."""
    return math.ceil(round(BEYOND * 100 / (100 - percentile), 6))


@dataclass(frozen=True)
class MachineLoad:
    """Other load on the machine during a measurement, as shares of the CPUs that the measurement may use.

    `others` is the share of other processes and `steal` that of other guests of the host. `throttled` is the share of
    the time in which a CPU quota stopped the measurement, `hot` is the number of times a core slowed down because of
    heat, and `load` is the load average at the end.
    """

    cpus: int = described("CPUs that the measurement may use.", minimum=0)
    others: float = described("Share of these CPUs that other processes used.", minimum=0, maximum=1)
    steal: float = described("Share of these CPUs that other guests of the host used.", minimum=0, maximum=1)
    throttled: float = described("Share of the time in which a CPU quota stopped it.", minimum=0, maximum=1)
    hot: int = described("How often a core slowed down because of heat.", minimum=0)
    load: float = described("The load average at the end of the measurement.", minimum=0)

    @property
    def lost(self) -> float:
        """The share of the CPUs that was not available."""
        return min(self.others + self.steal + self.throttled, 1.0)

    @property
    def busy(self) -> bool:
        """Whether the load is above that of an idle machine."""
        return self.others > 0.1 or self.steal > 0.02 or self.throttled > 0.01 or self.hot > 0

    def describe(self) -> str:
        """Describe the load."""
        parts = [f"other processes used {self.others:.0%} of {self.cpus} CPUs"] if self.others >= 0.01 else []
        parts += [f"other guests of the host used {self.steal:.0%}"] if self.steal >= 0.005 else []
        parts += [f"a CPU quota stopped it for {self.throttled:.0%} of the time"] if self.throttled >= 0.005 else []
        parts += [f"cores slowed down because of heat {self.hot} times"] if self.hot else []
        return ", ".join([*parts, f"load {self.load:.1f}"])


@dataclass(frozen=True)
class Timing:
    """The steady-state latency of one session. `speedup` is eager's median over this one's, with its 95% interval.

    A percentile is None if fewer than BEYOND samples are above it.
    """

    median_ms: float = described("Median.", minimum=0)
    p90_ms: float | None = described("90th percentile; null if fewer than 10 samples are above it.", minimum=0)
    p99_ms: float | None = described("99th percentile; null if fewer than 10 samples are above it.", minimum=0)
    min_ms: float = described("Fastest call.", minimum=0)
    max_ms: float = described("Slowest call.", minimum=0)
    ci95_ms: tuple[float, float] = described("95% interval of the median: low, high.", minimum=0)
    runs: int = described("Timed calls.", minimum=1)
    stable: bool = described("Whether the interval of the ratio to eager narrowed to within ±3% in the time budget.")
    speedup: float | None = described("Eager's median over this session's.", None, minimum=0)
    speedup_ci95: tuple[float, float] | None = described("95% interval of the speedup: low, high.", None, minimum=0)
    outliers: int = described("Calls whose modified z-score is above 3.5.", 0, minimum=0)
