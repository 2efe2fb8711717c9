"""Jobs whose user code misbehaves: how that is reported, and that nothing is left behind."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from exporter.core import processes
from exporter.core.errors import ExporterError, JobError
from exporter.workers.children import Zygote


def ended(pid: int) -> bool:
    """Return whether the process ends within ten seconds."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if pid not in {one for one, fields in processes.stats() if fields[0] != "Z"}:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("stays", [False, True], ids=["job ends", "job is stopped"])
def test_a_daemon_ends_with_its_job(stays: bool, zygote: Zygote, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    child = zygote.spawn("job", "support.jobs:daemon", {"file": str(file), "stays": stays}, tmp_path / "log")
    if stays:
        while not file.is_file() or not file.read_text():
            time.sleep(0.01)
        child.kill()
    else:
        child.wait(60)
    assert ended(int(file.read_text()))


def test_a_fork_that_returns_twice(zygote: Zygote, tmp_path: Path) -> None:
    assert zygote.run("job", "support.jobs:fork_and_return_twice", {}, tmp_path / "log", 60) == "the job"


def test_a_patched_pickle(zygote: Zygote, tmp_path: Path) -> None:
    assert zygote.run("job", "support.jobs:patch_pickle", {}, tmp_path / "log", 60) == "sent anyway"


def test_an_unreadable_message(zygote: Zygote, tmp_path: Path) -> None:
    with pytest.raises(JobError, match="job sent an unreadable message") as raised:
        zygote.run("job", "support.jobs:write_to_the_channel", {}, tmp_path / "log", 60)
    assert "descriptors" in raised.value.remedy


def test_sys_exit_is_reported(zygote: Zygote, tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"^the model's code ended the process: sys\.exit\(3\)"):
        zygote.run("job", "support.jobs:call_sys_exit", {}, tmp_path / "log", 60)


@pytest.mark.parametrize("name", ["raise_long_error", "raise_long_exporter_error"])
def test_a_message_of_50_mb(name: str, zygote: Zygote, tmp_path: Path) -> None:
    with pytest.raises(ExporterError, match="much much") as raised:
        zygote.run("job", f"support.jobs:{name}", {}, tmp_path / "log", 60)
    assert len(str(raised.value)) < 200_000
