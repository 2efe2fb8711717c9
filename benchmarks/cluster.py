"""Compare a release on a Ray cluster of two nodes, one of which is killed, with a release without a cluster."""

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

CACHE = f"{tempfile.gettempdir()}/torchinductor_{getpass.getuser()}"  # torch's default


def main() -> None:
    """Run both releases and compare them; the killed node must lose a step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", type=Path, default=EXAMPLE)
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN", help="as in `exporter release`")
    options = parser.parse_args()
    words = [str(options.file), *(f"--only={pattern}" for pattern in options.only)]
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        local, remote = Path(folder, "local"), Path(folder, "remote")
        began = time.monotonic()
        _run(words, local)
        steps = len(keys(local))
        print(f"this machine: {steps} steps in {time.monotonic() - began:.0f} s", flush=True)
        with _cluster(Path(folder)) as (nodes, node, at_work):
            began = time.monotonic()
            process = _start([*words, "--cluster", nodes.address], remote)
            while process.poll() is None and (len(keys(remote)) < steps // 3 or not any(at_work.glob("exporter-*"))):
                time.sleep(0.05)
            print(f"node killed during a step, with {len(keys(remote))} of {steps} steps finished", flush=True)
            nodes.remove_node(node, allow_graceful=False)
            output = _end(process)
            lost = output.count("lost, queued again")
            seconds = time.monotonic() - began
            print(f"cluster: {len(keys(remote))} steps in {seconds:.0f} s, {lost} lost with the node and run again")
        different = differences(local, remote)
        print(f"byte-for-byte equal artifacts: {equal_bytes(local, remote)} of {steps}")
    print("\n".join(different))
    verdict([("differences", len(different), 0), ("runs in which the node lost no step", int(not lost), 0)])


@contextmanager
def _cluster(folder: Path) -> Iterator[tuple[Any, Any, Path]]:
    """Start a cluster; yield it, its second node, and the folder in which that node makes bundles."""
    os.environ["RAY_TMPDIR"] = str(folder)
    from ray.cluster_utils import Cluster

    cpus, at_work = environment.usable_cpus(), folder / "second"
    at_work.mkdir()
    nodes = Cluster(True, head_node_args={"num_cpus": cpus, "include_dashboard": False})
    try:
        # Every package contains the path of the cache, so both nodes use the same one.
        variables = {"TMPDIR": str(at_work), "TORCHINDUCTOR_CACHE_DIR": CACHE}
        yield nodes, nodes.add_node(num_cpus=cpus, env_vars=variables), at_work
    finally:
        nodes.shutdown()


def _run(words: Sequence[str], out: Path) -> str:
    return _end(_start(words, out))


def _start(words: Sequence[str], out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "exporter", "release", *words, "--out", str(out)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _end(process: subprocess.Popen[str]) -> str:
    """Return the output of a release. Raises RuntimeError if it failed."""
    output, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"exit code {process.returncode}\n{output[-5000:]}")
    return output


if __name__ == "__main__":
    main()
