"""Measure how much faster than eager, onnxruntime and the peers the fastest artifact that keeps parity is.

BERT and ResNet-18 are exported at batch 1, with dynamic sizes as in their recipes, to every target in every precision.
All artifacts of a model are timed side by side in one run, and one line says how far the fastest ones are from the time
that reading their weights once takes. Exits with 1 if a promise is not kept.

With --peers, OpenVINO, XNNPACK and onnxruntime as it is used without exporter take part. `benchmarks/peers` makes
targets of them; `pip install -e 'benchmarks/peers[openvino,xnnpack]'` installs them. Missing peers are named.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from exporter import targets
from exporter.core import precisions
from exporter.core.errors import ExporterError
from exporter.evidence import stats

HERE = Path(__file__).parent
PEERS = ("openvino", "ort", "xnnpack")
PRECISIONS = {"cpu": "fp32,bf16,int8", "cuda": "fp32,tf32,fp16"}
TARGETS = {"cpu": "trace,compile,onnx", "cuda": "trace,compile,onnx,compile:reduce-overhead"}
FLOAT32 = ("fp32", "tf32")  # computed from float32 weights and inputs
BYTES = {"int8": 1, "bf16": 2, "fp16": 2}  # of one weight; 4 in other precisions
THE_PEERS = "the fastest peer"


class Promise(NamedTuple):
    """The lowest ratio of what `over` takes to what the fastest artifact takes. A missing measurement breaks it too."""

    model: str
    precisions: tuple[str, ...] | None  # those that count, for both if `over` is the fastest peer; None: all
    over: str
    least: float

    def counts(self, row: Row) -> bool:
        """Return whether the precision of the row counts."""
        return self.precisions is None or row.precision in self.precisions


PROMISES = {
    "cpu": [
        Promise("bert", ("fp32",), "eager", 3.3),
        Promise("bert", ("fp32",), "onnx", 1.2),
        Promise("resnet18", ("fp32",), "eager", 1.6),
        Promise("resnet18", ("fp32",), "onnx", 1.0),
        Promise("bert", None, "eager", 8.0),
        Promise("bert", None, "onnx@int8", 1.3),
        Promise("resnet18", None, "eager", 3.0),
    ],
    "cuda": [
        Promise("bert", FLOAT32, "eager", 2.6),
        Promise("resnet18", FLOAT32, "eager", 4.0),
        Promise("bert", ("fp16",), "eager", 6.0),
        Promise("resnet18", ("fp16",), "eager", 5.0),
        *(
            Promise(model, counted, over + suffix, 1.0)
            for model in ("bert", "resnet18")
            for counted, suffix in ((FLOAT32, "@tf32"), (("fp16",), "@fp16"))
            for over in ("compile:reduce-overhead", "onnx")
        ),
    ],
}
OVER_PEERS = [
    Promise(model, counted, THE_PEERS, least)
    for model in ("bert", "resnet18")
    for counted, least in ((("fp32",), 1.05), (None, 1.15))
]


class Row(NamedTuple):
    """One timed session of one variant; `flaw` says where it is wrong, if it is right at the size that was timed."""

    name: str
    session: str
    artifact: bool
    windows: list[list[float]]
    flaw: str = ""

    @property
    def target(self) -> str:
        """The name of its target."""
        return self.name.partition("@")[0].partition(":")[0]

    @property
    def precision(self) -> str:
        """The precision without the layers in float32."""
        return precisions.base(self.name.partition("@")[2]) or "fp32"

    @property
    def ms(self) -> float:
        """The median of the medians of the windows."""
        return stats.median([stats.median(window) for window in self.windows])

    def __str__(self) -> str:
        return f"{self.name} {self.session} {self.ms:.3g} ms" + (f" ({self.flaw})" if self.flaw else "")


def main() -> None:
    """Export and time each model, then check the promises."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--models", default="bert,resnet18")
    parser.add_argument("--fixed", action="store_true", help="fix all sizes")
    parser.add_argument("--peers", action="store_true", help="compare with the peers too, on the CPU")
    parser.add_argument("--time-budget", default="8")
    parser.add_argument("--out", type=Path, help="keep the reports, the manifests and the lines about each model here")
    arguments = parser.parse_args()
    if arguments.peers and arguments.device != "cpu":
        parser.error("the peers are compared on the CPU only")
    peers = list(present()) if arguments.peers else []
    promises = PROMISES[arguments.device] + (OVER_PEERS if arguments.peers else [])
    kept = [keeps(model, promises, arguments, peers) for model in arguments.models.split(",")]
    sys.exit(0 if all(kept) else 1)


def present() -> Iterator[str]:
    """Yield the peers that can be used; print which are missing, and why."""
    for name in PEERS:
        try:
            targets.require(targets.get(name))
            yield name
        except ExporterError as error:
            print(f"peer {name} is missing: {error}; see benchmarks/peers")


def keeps(model: str, promises: Iterable[Promise], arguments: argparse.Namespace, peers: list[str]) -> bool:
    """Measure a model and print its lines; return whether its promises are kept."""
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder) / "bundle"
        export(model, bundle, arguments, peers)
        found = rows(
            json.loads((bundle / "manifest.json").read_text()), json.loads((bundle / "samples.json").read_text())
        )
        if arguments.out:
            keep(model, bundle, arguments.out)
    checked = [check(found, promise) for promise in promises if promise.model == model]
    lines = [line for line, _ in checked] + list(floors(found, reading(model, arguments.device)))
    print(*lines, sep="\n", flush=True)
    if arguments.out:
        (arguments.out / f"{model}.txt").write_text("\n".join(lines) + "\n")
    return all(kept for _, kept in checked)


def export(model: str, bundle: Path, arguments: argparse.Namespace, peers: list[str]) -> None:
    """Export a model, which prints the table."""
    command = [sys.executable, "-m", "exporter", "export", model, "--weights", "random", "--device", arguments.device]
    command += ["--targets", ",".join([TARGETS[arguments.device], *peers]), "-q", "--out", str(bundle)]
    command += ["--precision", PRECISIONS[arguments.device], "--time-budget", arguments.time_budget]
    subprocess.run([*command, *(["--dynamic", "none"] if arguments.fixed else [])], check=False)


def keep(model: str, bundle: Path, out: Path) -> None:
    """Write the report, the manifest and the samples to `out`."""
    out.mkdir(parents=True, exist_ok=True)
    report = [sys.executable, "-m", "exporter", "report", str(bundle), "--format", "md"]
    (out / f"{model}.md").write_text(subprocess.check_output(report, text=True))
    (out / f"{model}.json").write_text((bundle / "manifest.json").read_text())
    (out / f"{model}-samples.json").write_text((bundle / "samples.json").read_text())


def rows(manifest: dict[str, Any], samples: dict[str, list[list[float]]]) -> list[Row]:
    """Return the rows that passed, and those of peers that are right at the size that was timed; the fastest first."""
    found = []
    for row in manifest["variants"]:
        flaw = "" if row["status"] == "passed" else flaw_of(row, manifest["golden"]["cases"][0]["name"])
        if flaw is not None:
            timed = ((name, samples.get(f"{row['name']} {name}")) for name in row["timings"])
            found += [
                Row(row["name"], name, bool(row["artifact"]), windows, flaw) for name, windows in timed if windows
            ]
    return sorted((row for row in found if not row.flaw or row.target in PEERS), key=lambda row: row.ms)


def flaw_of(row: dict[str, Any], case: str) -> str | None:
    """Return why a row failed; None if it is wrong in the case that is timed, or was not checked."""
    judged = [session["parity"] for session in row["sessions"] if session["parity"]]
    right = [part["verdict"] != "FAIL" for parity in judged for part in parity["parts"] if part["case"] == case]
    return judged[0]["reason"].partition(";")[0] if right and all(right) else None


def check(found: list[Row], promise: Promise) -> tuple[str, bool]:
    """Return a line that compares one promise with its measurement, and whether it is kept."""
    claim = f"{promise.model} {' or '.join(promise.precisions or ('any precision',))} over {promise.over}"
    ours = [
        row
        for row in found
        if row.artifact and row.target not in PEERS and row.name != promise.over and promise.counts(row)
    ]
    theirs = [
        row
        for row in found
        if (row.target in PEERS and promise.counts(row) if promise.over == THE_PEERS else row.name == promise.over)
    ]
    if not ours or not theirs:
        return f"{claim}: not measured  OVER", False
    ratio = stats.ratio(theirs[0].windows, ours[0].windows)
    low, high = stats.ratio_interval(theirs[0].windows, ours[0].windows)
    kept = ratio >= promise.least
    said = f"{claim}: {ratio:.2f} ({low:.2f}…{high:.2f}), promised {promise.least:g}: {ours[0]}, {theirs[0]}"
    return said + ("" if kept else "  OVER"), kept


def reading(model: str, device: str) -> dict[str, float]:
    """Return the number of weights that a call multiplies with, and the bytes that this machine reads in a second."""
    command = [sys.executable, str(HERE / "_reading.py"), model, device]
    found: dict[str, float] = json.loads(subprocess.check_output(command, text=True).splitlines()[-1])
    return found


def floors(found: list[Row], read: dict[str, float]) -> Iterator[str]:
    """Yield how far the fastest rows, ours and the peers', are from the time to read their weights once."""
    for whose, peers in (("fastest", False), (THE_PEERS.removeprefix("the "), True)):
        for counted in (FLOAT32, None):
            named = "float32" if counted else "any precision"
            chosen = [row for row in found if (row.target in PEERS) == peers and (row.artifact or peers)]
            best = next((row for row in chosen if counted is None or row.precision in counted), None)
            if best:
                size = read["weights"] * BYTES.get(best.precision, 4)
                ms = 1000 * size / read["bytes_per_s"]
                yield (
                    f"{whose}, {named}: {best} is {best.ms / ms:.1f} times the {ms:.3g} ms that reading its "
                    f"{size / 1e6:.3g} MB of weights once takes at {read['bytes_per_s'] / 1e9:.3g} GB/s"
                )


if __name__ == "__main__":
    main()
