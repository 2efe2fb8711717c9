"""Install the wheels of a release in new environments, outside the checkout, and show that each gives rows in C++.

    python cpp/packaging/check_wheels.py dist --targets trace,compile,export

The wheel with the sources compiles exporter-run there; the wheel with the program must not need to. The environments
borrow the other distributions from this interpreter, because installing torch takes minutes and 5 GB.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

import torch

DROPPED = ("EXPORTER_RUN", "PYTHONPATH", "VIRTUAL_ENV")  # of the environment's variables: what leads to the checkout


class Environment:
    """A virtual environment with one wheel, and an empty cache. torch is a link beside exporter's package."""

    def __init__(self, place: Path, wheel: Path) -> None:
        self.place = place
        venv.create(place / "venv", with_pip=False)
        self.python = place / "venv/bin/python"
        site = next(place.glob("venv/lib/python*/site-packages"))
        borrowed = Path(torch.__file__).parents[1]
        (site / "torch").symlink_to(borrowed / "torch")
        (site / "borrowed.pth").write_text(f"{borrowed}\n")
        (place / "work").mkdir()
        install = ["install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"]
        install += ["--ignore-installed", str(wheel)]  # the borrowed packages may include an editable exporter
        subprocess.run([sys.executable, "-m", "pip", "--python", str(self.python), *install], check=True)

    def exporter(self, *words: str) -> str:
        """Run the installed command, as `run` does."""
        return self.run(str(self.python.parent / "exporter"), *words)

    def run(self, *command: str) -> str:
        """Run a command in an empty folder, and return its standard output. Exits if it fails."""
        variables = {name: value for name, value in os.environ.items() if name not in DROPPED}
        variables |= {"XDG_CACHE_HOME": str(self.place / "cache"), "PATH": f"{self.python.parent}:{os.environ['PATH']}"}
        work = self.place / "work"
        done = subprocess.run(command, cwd=work, env=variables, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}")
        return done.stdout

    def consumer(self, artifact: Path) -> None:
        """Install the CMake package, compile the example with it, and run an artifact in it."""
        self.exporter("runner", "install", "--prefix", str(self.place / "prefix"))
        example = next(self.place.glob("venv/lib/python*/site-packages/exporter_cpp/examples/consumer"))
        build = self.place / "consumer"
        self.run("cmake", "-GNinja", "-S", str(example), "-B", str(build), f"-DCMAKE_PREFIX_PATH={self.place}/prefix")
        self.run("cmake", "--build", str(build))
        print(self.run(str(build / "consumer"), str(artifact)))


def rows(manifest: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the sessions that passed, by variant."""
    return {
        variant["name"]: tuple(one["session"] for one in variant["sessions"] if one["status"] == "passed")
        for variant in manifest["variants"]
    }


def check(wheel: Path, place: Path, options: list[str], example: bool) -> dict[str, tuple[str, ...]]:
    """Export a model with the wheel, and return the rows. A wheel without the program builds it first.

    With `example`, the trace then runs in the example's program, which is compiled with the installed CMake package.
    """
    one = Environment(place, wheel)
    compiled = wheel.stem.rpartition("-")[2] != "any"
    if not compiled:
        one.exporter("runner", "build")
    status = one.exporter("runner")
    print(status)
    expected = place / ("venv" if compiled else "cache")
    if str(expected) not in status:
        sys.exit(f"{wheel.name}: the runner is not below {expected}")
    manifest = one.exporter("export", "--no-bench", "--json", *options)
    if example and not compiled:
        one.consumer(next(one.place.glob("work/artifacts/*/trace.pt")))
    return rows(json.loads(manifest))


def main() -> None:
    """Check every wheel of a folder. Exit code 1 if a variant that runs in C++ has no row there."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("dist", type=Path)
    parser.add_argument("--model", default="resnet18", help="a name, or a recipe with an absolute path")
    parser.add_argument("--targets", default="trace,compile,export")
    parser.add_argument("--native", default="trace,compile,export", help="those that must have rows in C++")
    parser.add_argument("--example", action="store_true", help="also compile and run examples/consumer")
    given = parser.parse_args()
    options = [given.model, "--weights", "random", "--targets", given.targets]
    for wheel in sorted(given.dist.resolve().glob("*.whl")):
        with tempfile.TemporaryDirectory(prefix="exporter-") as place:
            found = check(wheel, Path(place), options, given.example)
        for name, sessions in found.items():
            print(f"{wheel.name}  {name:<10} {', '.join(sessions)}")
        missing = [name for name in given.native.split(",") if "native" not in found[name]]
        if missing:
            sys.exit(f"{wheel.name}: {', '.join(missing)} without a row in C++")


if __name__ == "__main__":
    main()
