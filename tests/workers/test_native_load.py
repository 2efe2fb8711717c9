"""`exporter-run bench` with several callers."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from support.commands import NATIVE

from exporter.core import environment

pytestmark = pytest.mark.skipif(not NATIVE, reason="exporter-run is not built")


def bench(bundle: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Time the bundle's trace in C++."""
    command = [str(environment.find_runner()), "bench", str(bundle / "trace.pt"), "--threads", "1", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_callers_make_the_given_share_of_their_highest_throughput(made_bundle: Path) -> None:
    done = bench(made_bundle, "--callers", "2", "--load", "20", "--runs", "100", "--windows", "4", "--json")
    answer = json.loads(done.stdout)
    assert answer["calls"] == 800
    # Pauses only get longer on a busy machine.
    assert answer["calls_per_s"] < 0.25 * answer["highest_calls_per_s"]


def test_one_caller_can_pause_too(made_bundle: Path) -> None:
    done = bench(made_bundle, "--callers", "1", "--load", "50", "--runs", "20", "--windows", "2")
    assert "50 %          of the" in done.stdout


def test_a_load_without_callers_is_refused(made_bundle: Path) -> None:
    done = bench(made_bundle, "--load", "50")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--load requires --callers" in done.stderr
