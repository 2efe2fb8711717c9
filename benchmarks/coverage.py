"""Many architectures through trace, script, compile and onnx, by exporter and by the bare calls: who is right?

Right is: the artifact gives what eager gives at two shapes that neither the example nor exporter's golden had. Writes
`coverage.json` and `coverage.md` into --out.
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
JUDGES = multiprocessing.get_context("forkserver")  # whose server has imported these for them
HEAVY = (
    "torch._inductor.compile_fx",
    "torch.onnx",
    "onnxscript",
    "onnxruntime",
    "torchvision",
    "exporter.workers.tasks",
)


def main() -> None:
    """Run all, or those that are named; exits with 1 when a promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="architectures, as hf:bert; all when none is named")
    parser.add_argument("--quick", action="store_true", help="only the few that the tests run")
    parser.add_argument("--jobs", type=int, default=environment.usable_cpus())
    parser.add_argument("--targets", default=",".join(TARGETS), help="only these")
    parser.add_argument("--no-bare", action="store_true", help="leave out the bare calls")
    parser.add_argument("--out", type=Path, default=Path("build/coverage"))
    arguments = parser.parse_args()
    asked = arguments.names or (architectures.QUICK if arguments.quick else architectures.every())
    absent = {name: packages for name in asked if (packages := architectures.missing(name))}
    for name, packages in absent.items():
        print(f"left out: {name} needs {', '.join(packages)} (benchmarks/README.md)")
    names = [name for name in asked if name not in absent]
    targets = arguments.targets.split(",")
    arguments.out = arguments.out.absolute()
    arguments.out.mkdir(parents=True, exist_ok=True)
    # One cache of inductor's for all: what it holds of each other's graphs is keyed by their text.
    os.environ |= {"TORCHINDUCTOR_CACHE_DIR": str(arguments.out / "cache"), "EXPORTER_RUN": "/none"}
    os.environ["AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL"] = "O0"  # of what calls the kernels, not of these
    JUDGES.set_forkserver_preload(list(HEAVY))
    started = time.perf_counter()
    found: dict[str, Any] = {}
    with ThreadPoolExecutor(arguments.jobs) as pool:
        started_ones = {pool.submit(cover, n, targets, not arguments.no_bare, arguments.out): n for n in names}
        for future in as_completed(started_ones):
            name, result = started_ones[future], future.result()
            found[name] = result
            print(f"{name:<48} {result['seconds']:5.0f} s  {line(name, result, targets)}", flush=True)
            (arguments.out / "coverage.json").write_text(json.dumps(found, indent=1))
    found = {name: found[name] for name in names}
    minutes = (time.perf_counter() - started) / 60
    (arguments.out / "coverage.json").write_text(json.dumps(found, indent=1))
    (arguments.out / "coverage.md").write_text(table(found, targets))
    sys.exit(conclude(found, targets, minutes))


def cover(name: str, targets: Sequence[str], bare: bool, out: Path) -> dict[str, Any]:
    """Export one architecture, then judge it in another process."""
    source, _, rest = name.partition(":")
    own, _, state = rest.partition("@")
    model = f"{HERE / FILES[source]}:{own}" if source in FILES else name
    started = time.perf_counter()
    sizes = architectures.SIZES.get(name, [])
    with tempfile.TemporaryDirectory(prefix="coverage-") as folder:
        bundle = f"{folder}/bundle"
        export = [sys.executable, "-m", "exporter", "export", model, "--targets", ",".join(targets), "--out", bundle]
        export += ["--weights", "auto" if source == "zoo" else "random", "--state", state or "carry", "--no-bench"]
        export += ["-q", "--threads", "1", "--device", "cpu", "--timeout", "600"]
        export += [word for size in sizes for word in ("--size", size)]
        exported = subprocess.run(export, capture_output=True, text=True, check=False)
        log = out / f"{name.replace(':', '-').replace('@', '-')}.log"
        log.write_text(exported.stdout + exported.stderr)
        asked = {name: tuple(map(int, size.split(".."))) for name, _, size in (s.partition("=") for s in sizes)}
        words = judge(model, Path(bundle), asked, targets if bare else (), log) or {"broken": str(log)}
    return {**words, "seconds": time.perf_counter() - started}


def judge(model: str, *rest: Any) -> dict[str, Any]:
    """What `_coverage.main` says in a process of its own; nothing when that failed."""
    ours, theirs = JUDGES.Pipe(duplex=False)
    process = JUDGES.Process(target=_coverage_main, args=(model, *rest, theirs))
    process.start()
    theirs.close()
    try:
        return dict(ours.recv())
    except EOFError:
        return {}
    finally:
        process.join()


def _coverage_main(*arguments: Any) -> None:
    """Imports torch only where it is needed: in the judges' server."""
    import _coverage

    sys.path = [path for path in sys.path if Path(path).absolute() != HERE]  # coverage.py hides the package coverage
    _coverage.main(*arguments)


def word(name: str, result: dict[str, Any], who: str, target: str) -> str:
    """One cell: right, WRONG, refused, or impossible (refused, as it must be)."""
    said = str(result.get(who, {}).get(target, "none")).partition(":")[0]
    if said == "refused" and (name, target) in architectures.IMPOSSIBLE:
        return "impossible"
    return {"wrong": "WRONG"}.get(said, said)


def line(name: str, result: dict[str, Any], targets: Sequence[str]) -> str:
    """All cells of exporter's, then of the bare calls."""
    if "broken" in result:
        return f"broken: see {result['broken']}"
    sides = [who for who in ("exporter", "bare") if who in result]
    return " | ".join(f"{who}: " + " ".join(word(name, result, who, t) for t in targets) for who in sides)


def table(found: dict[str, Any], targets: Sequence[str]) -> str:
    """Markdown: a row an architecture, exporter's word and the bare call's for each target."""
    rows = ["| architecture | " + " | ".join(targets) + " |", "|---" * (1 + len(targets)) + "|"]
    for name, result in found.items():
        cells = []
        for target in targets:
            ours = word(name, result, "exporter", target)
            cells.append(f"{ours} (bare: {word(name, result, 'bare', target)})" if "bare" in result else ours)
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    reasons = [
        f"- {name}, {target}: {result['exporter'][target].partition(': ')[2]}"
        for name, result in found.items()
        for target in targets
        if str(result.get("exporter", {}).get(target, "")).startswith("refused")
    ]
    return "\n".join([*rows, "", "Refused by exporter:", "", *reasons, ""])


def conclude(found: dict[str, Any], targets: Sequence[str], minutes: float) -> int:
    """Print the counts; the exit code."""
    counts: dict[str, dict[str, int]] = {}
    for who in ("exporter", "bare"):
        cells = [word(name, result, who, t) for name, result in found.items() if who in result for t in targets]
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
