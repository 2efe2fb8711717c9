"""Repeat the published comparisons on this machine, as tables and figures.

a: BERT-base and ResNet18 at batch 1, with every target. b: torch.compile's modes. c: a training step, with more or less
of it compiled. d: latency and build time against batch, sequence and layers. Writes raw.json (samples), tables.md and,
if matplotlib is installed, a figure for each table into --out.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import _growth
import _latency
import _modes
import _render
import _training
from _rows import Bench, complete

from exporter.core import environment
from exporter.workers.children import Zygote

MEASURES: dict[str, Callable[[Bench], list[dict[str, Any]]]] = {
    "a": _latency.measure,
    "b": _modes.measure,
    "c": _training.measure,
    "d": _growth.measure,
}
HERE = Path(__file__).parent
RAW = "raw.json"
LEFT_OUT = ("compiler", "exporter-run", "os")  # of the environment: paths, or irrelevant to timings
LIMIT_S = {"quick": 290.0, "cpu": 7200.0, "cuda": 480.0}
ROW_LIMIT_S = {"quick": 90.0, "cpu": 900.0, "cuda": 90.0}
BUDGET_S = {"quick": 0.5, "cpu": 5.0, "cuda": 1.0}


def main() -> None:
    """Measure and render, or only render."""
    arguments = parse()
    if arguments.render is None:
        measure(arguments)
    place = arguments.render or arguments.out
    raw = json.loads((place / RAW).read_text())
    (place / "tables.md").write_text(_render.markdown(raw))
    draw(raw, place)
    print(f"{place / 'tables.md'}")


def parse() -> argparse.Namespace:
    """Parse the command line; some defaults depend on the device and on --quick."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--tables", default=",".join(MEASURES), help="tables to measure; others in --out are kept")
    parser.add_argument(
        "--quick", action="store_true", help="measure fewer and smaller models: five minutes on 2 cores"
    )
    parser.add_argument("--out", type=Path, help="directory for the results; default: benchmarks/results/DEVICE")
    parser.add_argument(
        "--render", type=Path, metavar="DIR", help="measure nothing; make the outputs again from DIR/raw.json"
    )
    parser.add_argument("--threads", type=int, default=environment.usable_cpus())
    parser.add_argument(
        "--resume",
        action="store_true",
        help="measure only what is missing or failed in --out, if the rest is from this machine",
    )
    parser.add_argument(
        "--time-budget", type=float, metavar="SECONDS", help="average time for the timed calls of a row"
    )
    parser.add_argument(
        "--row-limit", type=float, metavar="SECONDS", help="time limit of one process, including builds"
    )
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="time limit of the whole run")
    arguments = parser.parse_args()
    kind = "quick" if arguments.quick else arguments.device
    arguments.tables = arguments.tables.split(",")
    arguments.out = arguments.out or HERE / "results" / arguments.device
    arguments.time_budget = arguments.time_budget or BUDGET_S[kind]
    arguments.row_limit = arguments.row_limit or ROW_LIMIT_S[kind]
    arguments.limit = arguments.limit or LIMIT_S[kind]
    if unknown := set(arguments.tables) - MEASURES.keys():
        parser.error(f"no such table: {min(unknown)}")
    return arguments


def measure(arguments: argparse.Namespace) -> None:
    """Measure the tables and write each one as soon as it is finished."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    file = arguments.out / RAW
    raw: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    ends = time.monotonic() + arguments.limit
    with tempfile.TemporaryDirectory(prefix="tables-") as folder, Zygote({"PYTHONPATH": search_path()}) as zygote:
        bench = Bench(
            zygote,
            Path(folder),
            arguments.device,
            arguments.threads,
            arguments.quick,
            arguments.time_budget,
            arguments.row_limit,
            ends,
        )
        for name in arguments.tables:
            print(f"table {name}", flush=True)
            started, here = time.monotonic(), context(arguments)
            earlier = raw.get(name, {})
            if arguments.resume and all(earlier.get(key) == fact for key, fact in here.items() if key != "created"):
                kept = [each for each in earlier["rotations"] if complete(each)]
                here["begun"] = earlier.get("begun", earlier["created"])
            else:
                kept = []
            rotations = MEASURES[name](replace(bench, kept=kept))
            raw[name] = here | {"seconds": time.monotonic() - started, "rotations": rotations}
            text = json.dumps({key: raw[key] for key in sorted(raw)})
            file.write_text(text.replace(f"{HERE.parent}/", "") + "\n")  # reasons may contain paths of this repository


def search_path() -> str:
    """Return PYTHONPATH for child processes: this directory, then the current PYTHONPATH."""
    return os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])


def context(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the machine and settings of a table, without paths."""
    facts = environment.describe()
    return {
        "device": arguments.device,
        "threads": arguments.threads,
        "quick": arguments.quick,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": {name: fact for name, fact in facts.items() if name not in LEFT_OUT},
    }


def draw(raw: dict[str, Any], place: Path) -> None:
    """Draw the figures if matplotlib is installed."""
    try:
        import _figures
    except ModuleNotFoundError:
        print(f"no figures, because matplotlib is not installed: pip install matplotlib, then --render {place}")
        return
    for name, table in raw.items():
        _figures.draw(name, table, place / f"{name}.svg")


if __name__ == "__main__":
    main()
