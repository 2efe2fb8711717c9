"""A release on a Ray cluster of two nodes on this machine, one of them killed in the middle, against one without."""

from __future__ import annotations

import argparse
import getpass
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from _process import verdict
from _releases import EXAMPLE, differences, equal_bytes, keys

from exporter.core import environment

CACHE = f"{tempfile.gettempdir()}/torchinductor_{getpass.getuser()}"  # as torch has it where nobody says otherwise


def main() -> None:
    """Both, compared; what was lost with the node, and whether something was."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", type=Path, default=EXAMPLE)
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN", help="as `exporter release` takes it")
    options = parser.parse_args()
    words = [str(options.file), *(f"--only={pattern}" for pattern in options.only)]
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        whole, far = Path(folder, "whole"), Path(folder, "far")
        began = time.monotonic()
        _run(words, whole)
        steps = len(keys(whole))
        print(f"this machine: {steps} steps in {time.monotonic() - began:.0f} s", flush=True)
        with _cluster(Path(folder)) as (nodes, node, at_work):
            began = time.monotonic()
            process = _start([*words, "--cluster", nodes.address], far)
            while process.poll() is None and (len(keys(far)) < steps // 3 or not any(at_work.glob("exporter-*"))):
                time.sleep(0.05)
            print(f"node killed at a step, {len(keys(far))} of {steps} steps finished", flush=True)
            nodes.remove_node(node, allow_graceful=False)
            said = _end(process)
            lost = said.count("lost, queued again")
            seconds = time.monotonic() - began
            print(f"cluster: {len(keys(far))} steps in {seconds:.0f} s, {lost} lost with the node and made again")
        different = differences(whole, far)
        print(f"artifacts of equal bytes: {equal_bytes(whole, far)} of {steps}")
    print("\n".join(different))
    verdict([("differences", len(different), 0), ("runs in which the node was at no step", int(not lost), 0)])


@contextmanager
def _cluster(folder: Path) -> Iterator[tuple[Any, Any, Path]]:
    """The cluster, its second node, and the folder in which that one makes bundles."""
    os.environ["RAY_TMPDIR"] = str(folder)
    from ray.cluster_utils import Cluster

    cpus, at_work = environment.usable_cpus(), folder / "second"
    at_work.mkdir()
    nodes = Cluster(True, head_node_args={"num_cpus": cpus, "include_dashboard": False})
    try:
        apart = {"TMPDIR": str(at_work), "TORCHINDUCTOR_CACHE_DIR": CACHE}  # whose path stands in every package
        yield nodes, nodes.add_node(num_cpus=cpus, env_vars=apart), at_work
    finally:
        nodes.shutdown()


def _run(words: Sequence[str], out: Path) -> str:
    return _end(_start(words, out))


def _start(words: Sequence[str], out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "exporter", "release", *words, "--out", str(out)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _end(process: subprocess.Popen[str]) -> str:
    """What it said. RuntimeError when it failed."""
    said, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"exit code {process.returncode}\n{said[-5000:]}")
    return said


if __name__ == "__main__":
    main()
