"""Measure memory and time of each step that exports GPT-2 to trace, compile and onnx.

The models have 0.1, 0.4, 0.8 and 1.5 billion parameters. Memory is the proportional set size of the whole process tree
(pages that processes share count once), sampled every 0.2 s. For comparison, torch's own calls for compile (load,
torch.export, AOTInductor with frozen weights) run in one process. Writes `raw.json` and `large.md` into --out; exits
with 1 if a variant failed or a limit is exceeded.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import _tree

from exporter.core import environment, memory
from exporter.core.filesystem import write_atomic
from exporter.core.progress import Listener
from exporter.core.records import Manifest, VariantRecord
from exporter.runs import memory_needs

if TYPE_CHECKING:
    from exporter.runs.request import Request

HERE = Path(__file__).parent
SIZES = {"0.1": "Small", "0.4": "Medium", "0.8": "Large", "1.5": "XL"}  # recipes in _gpt2.py
TARGETS = "trace,compile,onnx"
# The limits: FACTOR times the weights plus FIXED_GB, and MARGIN times the memory of torch's own compile.
FACTOR, FIXED_GB, MARGIN = 3.5, 2.0, 1.1
EVENT, ENDED = "EVENT ", "ended by "


def main() -> None:
    """Measure the requested sizes and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default=",".join(SIZES), help="in billions of parameters, separated by commas")
    parser.add_argument("--targets", default=TARGETS)
    parser.add_argument("--resume", action="store_true", help="measure only what is missing or failed in raw.json")
    parser.add_argument("--render", action="store_true", help="measure nothing; make the table again from raw.json")
    parser.add_argument("--timeout", type=float, default=7200.0, help="seconds that one job may take")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "large")
    parser.add_argument("--export", nargs=2, metavar=("SIZE", "BUNDLE"), help=argparse.SUPPRESS)
    parser.add_argument("--in-order", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--bare", metavar="SIZE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.export:
        if arguments.in_order:
            memory_needs.LARGE = 0
        return _export(*arguments.export, arguments.targets, arguments.timeout)
    if arguments.bare:
        return _compile_bare(arguments.bare)
    raw = arguments.out / "raw.json"
    kept = arguments.resume or arguments.render
    found: dict[str, Any] = json.loads(raw.read_text()) if kept and raw.is_file() else {}
    for size in [] if arguments.render else arguments.sizes.split(","):
        for kind, command in _runs(size, arguments.targets):
            key = f"{size} {kind}"
            if key in found and not lacks(found[key], "" if kind == "torch" else arguments.targets):
                continue
            found[key] = measure([__file__, *command, "--timeout", str(arguments.timeout)])
            print(f"{key}: {found[key]['peak_gb']:.2f} GB, {found[key]['seconds']:.0f} s {found[key]['failed']}")
            arguments.out.mkdir(parents=True, exist_ok=True)
            runs = ",\n".join(f"{json.dumps(key)}: {json.dumps(run)}" for key, run in found.items())
            write_atomic(raw, "{" + runs + "}\n")
    table, kept_promises = render(found)
    (arguments.out / "large.md").write_text(table)
    print(table)
    sys.exit(0 if kept_promises else 1)


def _runs(size: str, names: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the runs of a size: exporter, torch's own compile, and exporter with its steps in order.

    The last run is only for sizes below `memory_needs.LARGE`, whose steps otherwise run side by side.
    """
    export = ["--export", size, "BUNDLE", "--targets", names]
    yield "exporter", export
    if "compile" in names.split(","):
        yield "torch", ["--bare", size]
        if float(size) * 4e9 < memory_needs.LARGE:
            yield "in order", [*export, "--in-order"]


def lacks(run: Mapping[str, Any], names: str) -> bool:
    """Return whether a run must be repeated because it failed or lacks one of these targets."""
    return bool(run["failed"]) or not {name for name in names.split(",") if name} <= set(run["parity"])


def measure(words: Sequence[str]) -> dict[str, Any]:
    """Run a script in another process; return its steps and the memory of its process tree."""
    with tempfile.TemporaryDirectory(prefix="large-") as folder:
        words = [folder + "/bundle" if word == "BUNDLE" else word for word in words]
        started, variables = time.time(), {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder + "/cache"}
        free_gb = memory.free() / 1e9
        with subprocess.Popen(
            [sys.executable, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=variables,
        ) as process:
            sampler = _tree.Sampler(process.pid, started)
            sampler.start()
            output = process.communicate()[0]
            sampler.stop()
    events = [json.loads(line.removeprefix(EVENT)) for line in output.splitlines() if line.startswith(EVENT)]
    failed = "; ".join(event["failed"] for event in events if event.get("failed"))
    if process.returncode < 0 and not failed:
        failed = f"{ENDED}{signal.Signals(-process.returncode).name}, perhaps because memory ran out"
    elif process.returncode and not failed:
        failed = output.strip().splitlines()[-1] if output.strip() else f"exit code {process.returncode}"
    ended = time.time() - started
    return {
        "machine": {name: fact for name, fact in environment.describe().items() if name != "exporter-run"},
        "load": [round(load, 1) for load in sampler.loads],
        "free_gb": round(free_gb, 1),
        "date": date.today().isoformat(),
        "command": " ".join(["python", "benchmarks/large.py", *sys.argv[1:]]),
        "transformers": version("transformers"),
        "weights_gb": next((event["weights_gb"] for event in events if "weights_gb" in event), None),
        "seconds": ended,
        "peak_gb": max((gb for _, gb in sampler.samples), default=0.0),
        "failed": failed,
        "steps": steps([event for event in events if "stage" in event], sampler.samples, started, ended),
        "parity": {event["variant"]: event["parity"] for event in events if "parity" in event},
        "samples": peaks(sampler.samples),
    }


def peaks(samples: Sequence[tuple[float, float]]) -> list[tuple[int, float]]:
    """Return the peak of each second, as (second, GB)."""
    found: dict[int, float] = {}
    for at, gb in samples:
        found[int(at)] = max(round(gb, 3), found.get(int(at), 0.0))
    return sorted(found.items())


def steps(
    events: Sequence[Mapping[str, Any]], samples: Sequence[tuple[float, float]], started: float, ended: float
) -> dict[str, dict[str, float]]:
    """Return begin, duration and peak memory of each step.

    A step lasts from its event until the next event of the same variant, or until the end.
    """
    found: dict[str, dict[str, float]] = {}
    for place, event in enumerate(events):
        if event["stage"] in ("waiting", "done"):
            continue
        begin = event["at"] - started
        end = next((e["at"] - started for e in events[place + 1 :] if e["variant"] == event["variant"]), ended)
        peak = max((gb for at, gb in samples if begin <= at <= end), default=0.0)
        name = event["stage"] if event["variant"] == "eager" else f"{event['stage']} {event['variant']}"
        found[name] = {"begin": round(begin, 1), "seconds": round(end - begin, 1), "peak_gb": round(peak, 2)}
    return found


def _report(**event: Any) -> None:
    """Report an event to the measuring process, from any thread.

    The line is written in one piece; `print` would write the newline separately.
    """
    sys.stdout.write(f"{EVENT}{json.dumps({'at': time.time(), **event})}\n")
    sys.stdout.flush()


class _EventListener(Listener):
    def stage(self, variant: str, stage: str) -> None:
        _report(variant=variant, stage=stage)

    def done(self, record: VariantRecord) -> None:
        _report(variant=record.name, stage="done")


def _export(size: str, out: str, names: str, timeout: float) -> None:
    """Run `exporter export --no-bench` and report its events."""
    from exporter import targets
    from exporter.model import recipes
    from exporter.runs.request import Request

    source = recipes.find(f"{HERE / '_gpt2.py'}:{SIZES[size]}")
    request = Request(
        f"gpt2-{size}",
        source,
        tuple(targets.parse(names)),
        Path(out),
        threads=environment.usable_cpus(),
        timeout=timeout,
        bench=False,
    )
    run(request)


def run(request: Request) -> Manifest:
    """Run a request, report its events, and return the manifest."""
    from exporter.runs import pipeline

    manifest, _ = pipeline.run(request, _EventListener())
    _report(weights_gb=manifest.model.parameters * 4 / 1e9)
    for record in manifest.variants:
        verdicts = {session.session: session.parity.verdict for session in record.sessions if session.parity}
        failed = f"{record.name}: {record.stage}: {record.reason}" if record.status == "failed" else ""
        _report(variant=record.name, parity=verdicts, failed=failed)
    return manifest


def _compile_bare(size: str) -> None:
    """Run torch's own calls: load, torch.export with dynamic sizes, AOTInductor with frozen weights."""
    import _gpt2
    import torch

    torch.set_num_threads(environment.usable_cpus())
    _report(variant="torch", stage="load")
    recipe = _gpt2.RECIPES[size]
    model = recipe.load("random").eval()
    model.requires_grad_(False)
    _report(variant="torch", stage="torch.export")
    dims = {0: torch.export.Dim("batch", min=1, max=4), 1: torch.export.Dim("sequence", min=1, max=64)}
    with torch.no_grad():
        program = torch.export.export(model, (), recipe.inputs(2, 16), dynamic_shapes={"input_ids": dims}, strict=False)
        _report(variant="torch", stage="compile")
        with tempfile.TemporaryDirectory() as folder:
            torch._inductor.aoti_compile_and_package(
                program, package_path=f"{folder}/model.pt2", inductor_configs={"freezing": True}
            )
    _report(weights_gb=sum(p.numel() for p in model.parameters()) * 4 / 1e9)


def render(found: Mapping[str, Any]) -> tuple[str, bool]:
    """Return the table in Markdown, and whether every run passed and stayed within its limits."""
    sizes = [size for size in SIZES if f"{size} exporter" in found]
    runs = {size: found[f"{size} exporter"] for size in sizes}
    names = list(dict.fromkeys(name for run in runs.values() for name in run["steps"]))
    head = ["step", *(f"{size} B: GB" for size in sizes), *(f"{size} B: s" for size in sizes)]
    rows = [head, ["---"] * len(head)]
    for name in names:
        at = [run["steps"].get(name) for run in runs.values()]
        rows.append(
            [name, *(f"{s['peak_gb']:.2f}" if s else "" for s in at), *(f"{s['seconds']:.0f}" if s else "" for s in at)]
        )
    rows.append(
        [
            "**all**",
            *(f"**{r['peak_gb']:.2f}**" for r in runs.values()),
            *(f"{r['seconds']:.0f}" for r in runs.values()),
        ]
    )
    bare = [found.get(f"{size} torch") for size in sizes]
    rows.append(
        [
            "torch's own compile",
            *(f"{b['peak_gb']:.2f}{', then failed' if b['failed'] else ''}" if b else "" for b in bare),
            *(f"{b['seconds']:.0f}" if b else "" for b in bare),
        ]
    )
    ordered = [found.get(f"{size} in order") for size in sizes]
    if any(ordered):
        label = "all, steps in order"
        rows.append(
            [
                label,
                *(f"{r['peak_gb']:.2f}" if r else "" for r in ordered),
                *(f"{r['seconds']:.0f}" if r else "" for r in ordered),
            ]
        )
    lines, kept = [], True
    for size, run in runs.items():
        claims = list(_claims(run, found.get(f"{size} torch"), found.get(f"{size} in order")))
        failed = run["failed"] or (found.get(f"{size} in order") or {}).get("failed")
        kept &= not failed and all(measured <= limit for _, measured, limit in claims)
        parity = "; ".join(f"{n} {' '.join(f'{k}: {v}' for k, v in p.items())}" for n, p in run["parity"].items())
        lines += [f"- {size} B, weights of {run['weights_gb'] or 0:.2f} GB: {failed or parity}"]
        lines += [
            f"  - {'ok' if m <= limit else 'OVER'}: {text}: {m:.2f} GB, at most {limit:.2f}"
            for text, m, limit in claims
        ]
    stamps = {
        f"{r['date']}, {r['machine'].get('cpus', '')} cores of {r['machine'].get('cpu', '')}{_crowd(r)}, torch "
        f"{r['machine'].get('torch', '')}, transformers {r['transformers']}: `{r['command']}`"
        for r in found.values()
    }
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    return "\n".join([*sorted(stamps), "", table, "", *lines, ""]), kept


def _crowd(run: Mapping[str, Any]) -> str:
    """Describe the load and the free memory of the machine, if they were recorded."""
    if not run.get("load"):
        return ""
    return f" (load {min(run['load'])} to {max(run['load'])}, {run['free_gb']} GB free at the start)"


def _claims(
    run: Mapping[str, Any], bare: Mapping[str, Any] | None, ordered: Mapping[str, Any] | None
) -> Iterator[tuple[str, float, float]]:
    """Yield (claim, GB, limit): the export to compile against torch's own calls, everything else against the weights.

    If there is an `ordered` run, compile is judged there, because in the other run the steps overlap.
    """
    if not run["weights_gb"]:
        return
    yield "everything except the export to compile", _beside_compile(run), FACTOR * run["weights_gb"] + FIXED_GB
    judged, how = (ordered, ", in order") if ordered else (run, "")
    compiling = judged["steps"].get("export compile")
    # If torch's own calls were killed, their peak is a lower bound.
    if compiling and bare and (not bare["failed"] or bare["failed"].startswith(ENDED)):
        own = f"torch's own, which was {bare['failed']}" if bare["failed"] else "torch's own"
        yield f"the export to compile{how}, against {own}", compiling["peak_gb"], MARGIN * bare["peak_gb"]


def _beside_compile(run: Mapping[str, Any]) -> float:
    """Return the peak in GB outside the export to compile."""
    compiling = run["steps"].get("export compile")
    window = (compiling["begin"], compiling["begin"] + compiling["seconds"]) if compiling else (0.0, 0.0)
    return max((gb for at, gb in run["samples"] if not window[0] <= at <= window[1]), default=0.0)


if __name__ == "__main__":
    main()
