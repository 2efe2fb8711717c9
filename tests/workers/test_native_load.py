"""`exporter-run bench` with several callers, and what `exporter-run` says about the command line and the system."""

from __future__ import annotations

import json
import os
import shutil
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


def test_two_artifacts_in_one_process(made_bundle: Path) -> None:
    options = ("--callers", "2", "--load", "30", "--runs", "50", "--windows", "2", "--json")
    done = bench(made_bundle, *options, "--beside", str(made_bundle / "script.pt"))
    first, second = map(json.loads, done.stdout.splitlines())
    assert [Path(one["artifact"]).name for one in (first, second)] == ["trace.pt", "script.pt"]
    assert min(one["calls"] for one in (first, second)) >= 200
    assert all(one["calls_per_s"] < 0.4 * one["highest_calls_per_s"] for one in (first, second))


def test_both_artifacts_are_called_until_the_end(made_bundle: Path) -> None:
    """The faster one goes on until the slower one has made its calls."""
    options = ("--callers", "1", "--runs", "200", "--windows", "1", "--json")
    done = bench(made_bundle, *options, "--beside", str(made_bundle / "exported.pt2"))
    calls = [json.loads(line)["calls"] for line in done.stdout.splitlines()]
    assert (min(calls), max(calls) > 200) == (200, True)


def test_another_artifact_needs_callers_a_file_and_a_golden(made_bundle: Path, tmp_path: Path) -> None:
    done = bench(made_bundle, "--beside", str(made_bundle / "script.pt"))
    assert (done.returncode, "--beside requires --callers" in done.stderr) == (2, True)
    done = bench(made_bundle, "--callers", "1", "--beside", str(made_bundle / "no.pt"))
    assert (done.returncode, done.stderr.count("\n"), "no.pt" in done.stderr) == (1, 1, True)
    alone = shutil.copy(made_bundle / "script.pt", tmp_path)
    done = bench(made_bundle, "--callers", "1", "--beside", alone)
    assert (done.returncode, "use its bundle, because --golden is the first artifact's" in done.stderr) == (1, True)


def test_too_many_calls_are_refused(made_bundle: Path) -> None:
    done = bench(made_bundle, "--callers", "2", "--windows", "65536", "--runs", "65536")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--windows times --runs is 4294967296 calls of each caller" in done.stderr


def test_callers_that_cannot_be_started_are_an_error(made_bundle: Path) -> None:
    """A thread's stack takes 1 GB of addresses here, so that few fit."""
    runner, artifact = environment.find_runner(), made_bundle / "trace.pt"
    options = "--callers 200 --threads 1"
    command = f'ulimit -s 1000000 && ulimit -v 30000000 && exec "{runner}" bench "{artifact}" {options}'
    one = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, env=one)
    if "cannot modify limit" in done.stderr:
        pytest.skip("the limit of stacks cannot be raised")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "of 200 callers could be started" in done.stderr


@pytest.mark.parametrize("command", ["info", "verify", "bench"])
def test_an_empty_path_is_a_usage_error(command: str) -> None:
    done = subprocess.run([str(environment.find_runner()), command, ""], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "exporter-run: ARTIFACT is empty: give a file\n")


@pytest.mark.parametrize("options", [["info"], ["bench", "--runs", "5", "--windows", "5"]])
def test_paths_need_not_be_utf8(made_bundle: Path, tmp_path: Path, options: list[str]) -> None:
    path = os.fsencode(tmp_path) + b"/\xff.pt"
    shutil.copy(made_bundle / "trace.pt", path)
    command = [str(environment.find_runner()), options[0], path, *options[1:], "--json"]
    golden = ["--golden", str(made_bundle / "golden.safetensors")] if options[0] == "bench" else []
    done = subprocess.run([*command, *golden], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["artifact"] == f"{tmp_path}/\N{REPLACEMENT CHARACTER}.pt"


def test_a_session_needs_an_output(made_bundle: Path) -> None:
    command = f'exec "{environment.find_runner()}" session "{made_bundle / "trace.pt"}" >&-'
    done = subprocess.run(
        ["bash", "-c", command], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, "exporter-run: standard output cannot be written\n")


def test_a_file_that_cannot_be_opened_is_not_called_altered(made_bundle: Path) -> None:
    command = f'ulimit -n 4 && exec "{environment.find_runner()}" info "{made_bundle / "trace.pt"}"'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, "Too many open files" in done.stderr, "altered" in done.stderr) == (1, True, False)
