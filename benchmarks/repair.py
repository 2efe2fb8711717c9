"""Repair models that torch.export refuses, apply the printed patch, and export the result with `exporter export`.

Each model is copied to a folder of its own. `exporter export` must fail for the copy; then `exporter repair` prints a
patch, which `patch` or `git apply` applies; then `exporter export` must pass, with the options that the report names.
Exits with 1 if fewer than --least of the models pass.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

RECIPES = Path(__file__).parents[1] / "tests" / "recipes"
REPAIRABLE = (
    "gate", "early", "ternary", "levels", "normalised", "trimmed", "verbose", "checked", "cached", "keyed",
    "overwritten", "tuples", "detour", "rows", "rooted", "clipped", "shrinking",
)  # fmt: skip
REFUSED = ("attention", "denoiser", "pool", "normalizer", "router", "beam", "boxes", "quantizer")
FILES = dict.fromkeys(REPAIRABLE, "repairable.py") | dict.fromkeys(REFUSED, "refused.py")
UNREPAIRABLE = ("one_sided", "promoting", "raising", "writing", "halving", "drawing")
FILES |= dict.fromkeys(UNREPAIRABLE, "unrepairable.py")


@dataclass(frozen=True)
class Row:
    """What happened to one model."""

    name: str
    before: bool  # whether it passed as it was
    verdict: str
    steps: str
    options: str
    after: bool
    seconds: float

    @property
    def counts(self) -> bool:
        """Return whether torch.export refused the model, and the patched one passed."""
        return not self.before and self.after


def exporter(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of exporter in a folder."""
    command = [sys.executable, "-m", "exporter", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def passes(folder: Path, model: str, targets: str, options: Sequence[str] = ()) -> bool:
    """Return whether every variant of a model passes."""
    words = ("--targets", targets, "--no-bench", "--device", "cpu", "-q", "--replace", *options)
    return exporter(folder, "export", model, *words).returncode == 0


def apply(folder: Path, patch: str) -> None:
    """Apply a printed diff. Raises CalledProcessError if it does not apply."""
    program = ["patch", "-p0"] if shutil.which("patch") else ["git", "apply", "-p0"]
    subprocess.run(program, cwd=folder, input=patch, text=True, check=True, capture_output=True)


def measure(name: str, folder: Path, targets: str) -> Row:
    """Export, repair, apply and export again."""
    shutil.copy(RECIPES / FILES[name], folder / "net.py")
    model, started = f"net.py:{name}", time.perf_counter()
    before = passes(folder, model, "export")
    report = json.loads(exporter(folder, "repair", model, "--device", "cpu", "-q", "--json").stdout or "{}")
    repaired = report.get("verdict") == "repaired"
    for patch in report.get("patches", ()):
        apply(folder, patch["diff"])
    options = " ".join(report.get("options", ()))
    after = repaired and passes(folder, model, targets, options.split())
    steps = "; ".join(step["text"] for step in report.get("steps", ()))
    return Row(
        name, before, report.get("verdict", "does not run"), steps, options, after, time.perf_counter() - started
    )


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help=f"which models; default: {' '.join(REPAIRABLE + REFUSED)}")
    parser.add_argument("--targets", default="export", help="targets that the patched model must pass")
    parser.add_argument("--least", type=int, default=10, help="how many must pass")
    given = parser.parse_args()
    rows = []
    for name in given.models or REPAIRABLE + REFUSED:
        with tempfile.TemporaryDirectory() as folder:
            row = measure(name, Path(folder), given.targets)
        rows.append(row)
        passed = "passes" if row.after else "fails"
        said = f"{'passes' if row.before else 'fails'}, {row.verdict}, then {passed}"
        print(f"{row.name:12} {said:32} {row.seconds:5.0f} s  {row.steps} {row.options}".rstrip(), flush=True)
    count = sum(row.counts for row in rows)
    print(f"{count} of {sum(not row.before for row in rows)} refused models pass {given.targets} once repaired")
    return 0 if count >= min(given.least, len(rows)) else 1


if __name__ == "__main__":
    sys.exit(main())
