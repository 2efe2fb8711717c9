"""Compare the cold start of compiled packages and exported programs with that of traced files, in C++ on the CPU."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import click
from _process import peak_mb, verdict

from exporter.bundle import layout
from exporter.core import environment
from exporter.workers.session.client import NativeSession

TARGETS = {"trace": "trace.pt", "compile": "compile.pt2", "export": "exported.pt2"}
SIZES = {"dynamic": "all", "fixed": "none"}  # values of --dynamic
NAMES = {
    "load_s": "time to load",
    "result_s": "load to first result",
    "first_s": "start to first result",
    "rss_mb": "peak RSS",
    "pss_mb": "PSS",
    "private_mb": "private memory",
}
Limits = Mapping[str, Mapping[str, float]]
# The most that each target may take of what the trace takes, in a bundle and outside, where no SHA-256 is checked. The
# hash takes the same time for both files, and longer than everything else in a load of an exported BERT.
IN_BUNDLE: Limits = {"compile": {"load_s": 1.0, "first_s": 1.0, "rss_mb": 1.2, "pss_mb": 1.2}, "export": {}}
ALONE: Limits = {"export": {"result_s": 0.3, "first_s": 0.5, "private_mb": 0.4}}
ALONE_OTHERWISE: Limits = {
    "export": {"result_s": 1.0, "first_s": 1.0, "private_mb": 1.0}
}  # the disk is the slowest part
TIMEOUT_S = 600.0
DROP_CACHES = Path("/proc/sys/vm/drop_caches")


@dataclass(frozen=True)
class Start:
    """One start of a process, until its first result. Memory is in MB, after that result."""

    load_s: float
    result_s: float  # loading and the first call
    first_s: float  # from the start of the process
    rss_mb: float  # the peak
    pss_mb: float
    private_mb: float  # without clean pages of mapped files, which the kernel can drop


def start(runner: Path, artifact: Path) -> Start:
    """Load the artifact in a new process and call it once."""
    begun = time.perf_counter()
    place = artifact.parent
    words = [str(runner), "session", str(artifact), "--golden", str(layout.golden(place))]
    session = NativeSession(artifact.name, words, place / "logs" / "cold_start.log", TIMEOUT_S)
    session.start()
    try:
        load = session.ready["load_s"]
        loaded = time.perf_counter()
        session.time(1)
        now = time.perf_counter()
        memory = [memory_mb(session.pid, name) for name in ("Pss", "Private_Dirty")]
        return Start(load, load + now - loaded, now - begun, peak_mb(session.pid), *memory)
    finally:
        session.close()


def memory_mb(pid: int, name: str) -> float:
    """Return a field of a process's smaps_rollup in MB, such as Pss, the proportional set size."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1]) * 1024 / 1e6


def forget(artifact: Path) -> None:
    """Drop a file from the page cache."""
    with artifact.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def forget_everything(artifact: Path) -> None:
    """Drop the whole page cache, torch's libraries included; needs root."""
    DROP_CACHES.write_text("3")


def bundle(model: str, sizes: str, folder: Path) -> Path:
    """Export a model, unless the folder has it from an earlier run."""
    place = folder / f"{model.replace(':', '-')}-{sizes}"
    if not place.exists():
        words = [sys.executable, "-m", "exporter", "export", model, "--weights", "random", "--dynamic", SIZES[sizes]]
        words += ["--targets", ",".join(TARGETS), "--device", "cpu", "--no-bench", "--out", str(place), "-q"]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return place


def alone(place: Path) -> Path:
    """Return a folder with the artifacts of a bundle and its golden, but without SHA256SUMS."""
    folder = place.with_name(f"{place.name}-alone")
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    for file in (*(place / name for name in TARGETS.values()), layout.golden(place)):
        if not (folder / file.name).exists():
            (folder / file.name).hardlink_to(file)
    return folder


def measure(
    runner: Path, place: Path, targets: list[str], rounds: int, prepare: Callable[[Path], None] | None
) -> dict[str, list[Start]]:
    """Start the artifacts in turn; `prepare` is called before each start, None keeps the page cache."""
    found: dict[str, list[Start]] = {target: [] for target in targets}
    for target in targets:  # into the page cache, or written to the disk
        start(runner, place / TARGETS[target])
    os.sync()
    for index in range(rounds):
        for target in targets[:: 1 if index % 2 else -1]:
            artifact = place / TARGETS[target]
            if prepare:
                prepare(artifact)
            found[target].append(start(runner, artifact))
    return found


def claims_of(what: str, found: dict[str, list[Start]], limits: Limits) -> Iterator[tuple[str, float, float]]:
    """Print the medians of the artifacts, and yield the ratios with their limits."""
    medians = {
        target: {field: statistics.median(getattr(one, field) for one in starts) for field in NAMES}
        for target, starts in found.items()
    }
    for target, values in medians.items():
        measured = (f"{name} {values[field]:.{3 if field.endswith('_s') else 0}f}" for field, name in NAMES.items())
        click.echo(f"{what:26} {target:8} {', '.join(measured)} (s, MB)")
    for target, bounds in limits.items():
        for field, limit in bounds.items():
            ratio = medians[target][field] / medians["trace"][field]
            yield f"{what}, {NAMES[field]}, {target} over trace", ratio, limit


@click.command()
@click.argument("models", nargs=-1)
@click.option("--rounds", default=7, show_default=True)
@click.option("--everything", is_flag=True, help="Drop the whole page cache before cold starts, not only the artifact.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Directory that keeps the bundles; by default they are deleted."
)
def main(models: tuple[str, ...], rounds: int, everything: bool, out: Path | None) -> None:
    """Measure each model with dynamic and fixed sizes, with a warm and a cold page cache."""
    runner = environment.find_runner()
    if runner is None:
        sys.exit("exporter-run is not built: make cpp")
    prepare = forget_everything if everything else forget
    claims: list[tuple[str, float, float]] = []
    with tempfile.TemporaryDirectory() as temporary:
        for model in models or ("resnet18", "bert"):
            for sizes in SIZES:
                place = bundle(model, sizes, out or Path(temporary))
                warm = ALONE if model == "bert" else ALONE_OTHERWISE  # starting LibTorch outweighs a smaller model
                for cache, before, limits_alone in (("warm", None, warm), ("cold", prepare, ALONE_OTHERWISE)):
                    for kind, folder, limits in (("", place, IN_BUNDLE), (" alone", alone(place), limits_alone)):
                        found = measure(runner, folder, ["trace", *limits], rounds, before)
                        claims += claims_of(f"{model} {sizes} {cache}{kind}", found, limits)
    verdict(claims)


if __name__ == "__main__":
    main()
