"""Export many architectures to trace, script, compile and onnx, with exporter and with bare calls, and judge them.

An artifact is right if its outputs equal eager's at two shapes that are neither in the example nor in exporter's
golden, with `--native` also in C++. Writes `coverage.json` and `coverage.md` into --out.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import architectures

from exporter.core import environment

TARGETS = ("trace", "script", "compile", "onnx")
HERE = Path(__file__).absolute().parent
FILES = {"own": "architectures.py", "zoo": "zoo/recipes.py"}
JUDGES = multiprocessing.get_context("forkserver")  # the fork server imports HEAVY once for all judges
HEAVY = (
    "torch._inductor.compile_fx",
    "torch.onnx",
    "onnxscript",
    "onnxruntime",
    "torchvision",
    "exporter.workers.tasks",
)


def main() -> None:
    """Cover all architectures, or those that are named. Exits with 1 if a promise is not kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="architectures, such as hf:bert; all by default")
    parser.add_argument("--quick", action="store_true", help="only the architectures that the tests run")
    parser.add_argument("--jobs", type=int, default=environment.usable_cpus())
    parser.add_argument("--targets", default=",".join(TARGETS), help="targets to export to")
    parser.add_argument("--native", default="", help="targets whose artifacts also run in C++, such as export")
    parser.add_argument("--no-bare", action="store_true", help="skip the bare calls")
    parser.add_argument("--exported", type=Path, help="judge the existing bundles in this folder instead of exporting")
    parser.add_argument("--out", type=Path, default=Path("build/coverage"))
    arguments = parser.parse_args()
    asked = arguments.names or (architectures.QUICK if arguments.quick else architectures.every())
    absent = {name: packages for name in asked if (packages := architectures.missing(name))}
    for name, packages in absent.items():
        print(f"skipped: {name} needs {', '.join(packages)} (benchmarks/README.md)")
    names = [name for name in asked if name not in absent]
    targets = arguments.targets.split(",")
    arguments.out = arguments.out.absolute()
    arguments.out.mkdir(parents=True, exist_ok=True)
    # All architectures share inductor's cache, whose keys include the text of each graph.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(arguments.out / "cache"))
    if arguments.native and environment.find_runner() is None:
        sys.exit("exporter-run is not built: make cpp")
    if not arguments.native:
        os.environ["EXPORTER_RUN"] = "/none"
    os.environ["AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL"] = "O0"  # for the wrapper code, not for the kernels
    JUDGES.set_forkserver_preload(list(HEAVY))
    started = time.perf_counter()
    found: dict[str, Any] = {}
    with ThreadPoolExecutor(arguments.jobs) as pool:
        futures = {pool.submit(cover, n, targets, arguments): n for n in names}
        for future in as_completed(futures):
            name, result = futures[future], future.result()
            found[name] = result
            print(f"{name:<48} {result['seconds']:5.0f} s  {line(name, result, targets)}", flush=True)
            (arguments.out / "coverage.json").write_text(json.dumps(found, indent=1))
    found = {name: found[name] for name in names}
    minutes = (time.perf_counter() - started) / 60
    (arguments.out / "coverage.json").write_text(json.dumps(found, indent=1))
    (arguments.out / "coverage.md").write_text(table(found, targets))
    sys.exit(conclude(found, targets, minutes))


def cover(name: str, targets: Sequence[str], arguments: argparse.Namespace) -> dict[str, Any]:
    """Export one architecture, then judge it in another process."""
    started = time.perf_counter()
    log = arguments.out / f"{folder_of(name)}.log"
    with tempfile.TemporaryDirectory(prefix="coverage-") as folder:
        if arguments.exported:
            bundle = arguments.exported / folder_of(name)
        else:
            bundle = Path(folder, "bundle")
            command = [sys.executable, "-m", "exporter", *export_arguments(name, targets, bundle)]
            exported = subprocess.run(command, capture_output=True, text=True, check=False)
            log.write_text(exported.stdout + exported.stderr)
        native = tuple(filter(None, arguments.native.split(",")))
        found = judge(name, bundle, () if arguments.no_bare else targets, native, log) or {"broken": str(log)}
    return {**found, "seconds": time.perf_counter() - started}


def folder_of(name: str) -> str:
    """Return the name of an architecture as a file name."""
    return name.replace(":", "-").replace("@", "-")


def export_arguments(name: str, targets: Sequence[str], bundle: Path) -> list[str]:
    """Return the arguments of `exporter` that export an architecture."""
    source, _, rest = name.partition(":")
    sizes = architectures.SIZES.get(name, [])
    return [
        "export", recipe(name), "--targets", ",".join(targets), "--out", str(bundle),
        "--weights", "auto" if source == "zoo" else "random", "--state", rest.partition("@")[2] or "carry",
        "--no-bench", "-q", "--threads", "1", "--device", "cpu", "--timeout", "600",
        *(argument for size in sizes for argument in ("--size", size)),
    ]  # fmt: skip


def recipe(name: str) -> str:
    """Return the recipe of an architecture as an argument of the command line."""
    source, _, rest = name.partition(":")
    return f"{HERE / FILES[source]}:{rest.partition('@')[0]}" if source in FILES else name


def judge(name: str, bundle: Path, bare: Sequence[str], native: Sequence[str], log: Path) -> dict[str, Any]:
    """Return the verdicts of `_coverage.main`, run in a separate process; {} if it fails."""
    sizes = (size.partition("=") for size in architectures.SIZES.get(name, []))
    asked = {symbol: tuple(map(int, size.split(".."))) for symbol, _, size in sizes}
    ours, theirs = JUDGES.Pipe(duplex=False)
    process = JUDGES.Process(target=_coverage_main, args=(recipe(name), bundle, asked, bare, log, native, theirs))
    process.start()
    theirs.close()
    try:
        return dict(ours.recv())
    except EOFError:
        return {}
    finally:
        process.join()


def _coverage_main(*arguments: Any) -> None:
    """Run `_coverage.main`, so that torch is imported only in the fork server and the judges."""
    import _coverage

    # This coverage.py would hide the package of that name.
    sys.path = [path for path in sys.path if Path(path).absolute() != HERE]
    _coverage.main(*arguments)


def verdict(name: str, result: dict[str, Any], who: str, target: str) -> str:
    """Return one cell: right, WRONG, refused, or impossible (refused, as it must be)."""
    found = str(result.get(who, {}).get(target, "none")).partition(":")[0]
    if found == "refused" and (name, target) in architectures.IMPOSSIBLE:
        return "impossible"
    return {"wrong": "WRONG"}.get(found, found)


def line(name: str, result: dict[str, Any], targets: Sequence[str]) -> str:
    """Return the cells of exporter, then those of the bare calls."""
    if "broken" in result:
        return f"broken: see {result['broken']}"
    sides = [who for who in ("exporter", "bare") if who in result]
    return " | ".join(f"{who}: " + " ".join(verdict(name, result, who, t) for t in targets) for who in sides)


def table(found: dict[str, Any], targets: Sequence[str]) -> str:
    """Return a Markdown table: a row per architecture, with the verdicts on exporter and the bare call per target."""
    rows = ["| architecture | " + " | ".join(targets) + " |", "|---" * (1 + len(targets)) + "|"]
    for name, result in found.items():
        cells = []
        for target in targets:
            ours = verdict(name, result, "exporter", target)
            cells.append(f"{ours} (bare: {verdict(name, result, 'bare', target)})" if "bare" in result else ours)
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    reasons = [
        f"- {name}, {target}: {result['exporter'][target].partition(': ')[2]}"
        for name, result in found.items()
        for target in targets
        if str(result.get("exporter", {}).get(target, "")).startswith("refused")
    ]
    return "\n".join([*rows, "", "Refused by exporter:", "", *reasons, ""])


def conclude(found: dict[str, Any], targets: Sequence[str], minutes: float) -> int:
    """Print the counts; return the exit code."""
    counts: dict[str, dict[str, int]] = {}
    for who in ("exporter", "bare"):
        cells = [verdict(name, result, who, t) for name, result in found.items() if who in result for t in targets]
        counts[who] = {kind: cells.count(kind) for kind in dict.fromkeys(cells)}
        print(f"{who}: " + ", ".join(f"{n} {kind}" for kind, n in counts[who].items()))
    broken = [name for name, result in found.items() if "broken" in result]
    ours = counts["exporter"]
    possible = sum(ours.values()) - ours.get("impossible", 0) + len(targets) * len(broken)
    share = ours.get("right", 0) / possible if possible else 0.0
    print(f"{len(found)} architectures in {minutes:.1f} minutes; right on {share:.1%} of what is possible")
    for name in broken:
        print(f"broken: {name}")
    return int(bool(broken) or ours.get("WRONG", 0) > 0 or share < 0.98)


if __name__ == "__main__":
    main()
