"""Jobs in child processes, and every way in which they fail."""

from __future__ import annotations

import errno
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from exporter.core import filesystem
from exporter.core.errors import ExportError, JobError
from exporter.workers.children import Child, Zygote, Zygotes, ended


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "job.log"


@pytest.fixture
def spawn(zygote: Zygote, log: Path) -> Iterator[Callable[..., Child]]:
    """A function that starts a job from jobs.py."""
    started: list[Child] = []

    def act(function: str, **arguments: Any) -> Child:
        started.append(zygote.spawn("the job", f"support.jobs:{function}", arguments, log))
        return started[-1]

    yield act
    for child in started:
        child.kill()


def alive(pid: int) -> bool:
    """Return whether a process still runs. A zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def ends(condition: Callable[[], bool]) -> bool:
    """Return whether the condition becomes false within ten seconds."""
    for _ in range(1000):
        if not condition():
            return True
        time.sleep(0.01)
    return False


def test_the_result_of_a_job(spawn, log: Path) -> None:
    value = {"a": [1, 2.5, None], "b": Path("x")}
    assert spawn("return_value", value=value).wait(60) == value
    assert "about to return" in log.read_text()


def test_large_results(spawn) -> None:
    assert len(spawn("return_many_bytes", count=3_000_000).wait(60)) == 3_000_000


def test_arguments_of_any_size(spawn) -> None:
    value = "x" * 3_000_000
    assert spawn("return_value", value=value).wait(60) == value


def test_a_job_that_raises(spawn) -> None:
    with pytest.raises(JobError, match=r"^ValueError: two lines \(.*/jobs\.py:\d+\)$") as raised:
        spawn("raise_error").wait(60)
    assert "Traceback" in raised.value.log


def test_a_job_that_raises_an_exporter_error(spawn) -> None:
    with pytest.raises(ExportError, match="the model cannot") as raised:
        spawn("raise_exporter_error").wait(60)
    assert raised.value.remedy == "try another"


def test_a_job_that_raises_an_unpicklable_error(spawn) -> None:
    with pytest.raises(JobError, match="Local: of a class that nobody else knows"):
        spawn("raise_unpicklable").wait(60)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("segfault", "the job was ended by SIGSEGV"),
        ("be_killed", r"the job was ended by SIGKILL \(out of memory\?\)"),
        ("exit_silently", "the job ended with exit code 3 and no result"),
        ("exit_with_message", r"the model's code ended the process: sys\.exit\('a model should not do this'\)"),
    ],
)
def test_a_job_that_ends_without_a_result(spawn, function: str, message: str) -> None:
    with pytest.raises(JobError, match=message):
        spawn(function).wait(60)


def test_the_last_output_is_kept(spawn) -> None:
    with pytest.raises(JobError) as raised:
        spawn("segfault").wait(60)
    assert "the last words" in raised.value.log


def test_the_error_of_a_job_arrives_if_its_log_cannot_be_written(
    zygote: Zygote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Child, "tail", lambda _: "")  # this device never ends
    with pytest.raises(JobError, match=r"^ValueError: two lines"):
        zygote.spawn("the job", "support.jobs:raise_error", {}, Path("/dev/full")).wait(60)


@pytest.mark.parametrize(("number", "cause"), [(errno.ENOSPC, "disk-full"), (errno.EROFS, "")])
def test_a_job_that_dies_on_a_full_disk(spawn, monkeypatch: pytest.MonkeyPatch, number: int, cause: str) -> None:
    def probe(folder: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(filesystem, "probe_space", probe)
    with pytest.raises(JobError, match="no result") as raised:
        spawn("exit_silently").wait(60)
    assert (raised.value.blame.cause if raised.value.blame else "") == cause


def test_a_job_that_hangs(spawn) -> None:
    child = spawn("ignore_the_channel_and_sleep")
    with pytest.raises(JobError, match="took longer than 1 s and was stopped") as raised:
        child.wait(1)
    assert raised.value.remedy == "raise --timeout"
    assert ends(lambda: alive(child.group))


def test_a_job_that_hangs_takes_its_children_with_it(spawn, tmp_path: Path) -> None:
    note = tmp_path / "pids"
    child = spawn("start_children_and_hang", note=note)
    assert ends(lambda: not (note.exists() and note.read_text().count(" ") == 1))
    with pytest.raises(JobError):
        child.wait(0.1)
    for pid in map(int, note.read_text().split()):
        assert ends(lambda pid=pid: alive(pid))


def test_the_kernel_kills_jobs_before_their_parent(spawn) -> None:
    own = int(Path("/proc/self/oom_score_adj").read_text())
    assert spawn("oom_score").wait(60) == min(own + 500, 1000)


def test_a_job_that_is_killed_from_outside(spawn) -> None:
    child = spawn("ignore_the_channel_and_sleep")
    os.killpg(child.group, signal.SIGKILL)
    with pytest.raises(JobError, match="was killed from outside"):
        child.wait(60)


def test_a_new_job_can_be_killed_at_once(spawn) -> None:
    """The process group exists by the time that its ID is known."""
    for _ in range(20):
        child = spawn("ignore_the_channel_and_sleep")
        os.killpg(child.group, 0)
        child.kill()
        assert ends(lambda child=child: alive(child.group))


def test_after_a_crash_the_next_job_runs(spawn) -> None:
    with pytest.raises(JobError):
        spawn("segfault").wait(60)
    assert spawn("return_value", value=1).wait(60) == 1


def test_jobs_run_concurrently(spawn) -> None:
    children = [spawn("return_value", value=i) for i in range(6)]
    assert [child.wait(60) for child in reversed(children)] == [5, 4, 3, 2, 1, 0]


def test_jobs_from_several_threads(zygote: Zygote, tmp_path: Path) -> None:
    answers: dict[int, int] = {}

    def ask(i: int) -> None:
        answers[i] = zygote.run(f"job {i}", "support.jobs:return_value", {"value": i}, tmp_path / f"{i}.log", 60)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {0: 0, 1: 1, 2: 2, 3: 3}


def test_messages_before_the_end(spawn) -> None:
    child = spawn("send_messages_first", lines=["one", "two"])
    assert child.expect("news", 60) == "one"
    assert child.expect("news", 60) == "two"
    assert child.wait(60) == "done"


def test_a_message_that_never_comes(spawn) -> None:
    with pytest.raises(JobError, match="ValueError"):
        spawn("raise_error").expect("news", 60)
    with pytest.raises(JobError, match="SIGSEGV"):
        spawn("segfault").expect("news", 60)
    with pytest.raises(JobError, match="took longer than 0 s"):
        spawn("ignore_the_channel_and_sleep").expect("news", 0.2)


def test_jobs_do_not_read_our_stdin(spawn) -> None:
    assert spawn("read_stdin").wait(60) == ""


def test_warnings_go_to_the_log(spawn, log: Path) -> None:
    spawn("warn").wait(60)
    assert "mind the gap" in log.read_text()


def test_jobs_have_imported_torch(spawn) -> None:
    assert "torch" in spawn("modules").wait(60)


def test_a_wrong_argument_fails_only_the_job(spawn) -> None:
    with pytest.raises(JobError, match="TypeError"):
        spawn("return_value", value=1, other=2).wait(60)


def test_closing_ends_jobs_and_their_children(tmp_path: Path) -> None:
    with Zygote() as zygote:
        left = zygote.run("a job", "support.jobs:start_a_child_and_return", {}, tmp_path / "a.log", 60)
        child = zygote.spawn("a job", "support.jobs:ignore_the_channel_and_sleep", {}, tmp_path / "b.log")
        assert ends(lambda: alive(left)), "the children of a job end with it"
        assert alive(child.group)
    assert ends(lambda: alive(child.group))
    with pytest.raises(JobError, match="stopped before it began"):
        zygote.spawn("late", "support.jobs:return_value", {"value": 1}, tmp_path / "c.log")


def test_closing_does_not_wait_for_the_import_of_torch() -> None:
    with Zygote() as zygote:
        assert zygote.alive
    assert zygote._process.returncode == -signal.SIGTERM


def test_a_zygote_without_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch_cpu.so: cannot open shared object file')")
    with (
        Zygote({"PYTHONPATH": str(tmp_path)}) as zygote,
        pytest.raises(JobError, match="torch cannot be imported: ImportError: libtorch_cpu") as raised,
    ):
        zygote.spawn("a job", "support.jobs:return_value", {"value": 1}, tmp_path / "a.log")
    assert "doctor" in raised.value.remedy


def test_a_zygote_that_died(tmp_path: Path) -> None:
    """Killing the zygote ends its jobs too."""
    with Zygote() as zygote:
        child = zygote.spawn("a job", "support.jobs:send_pid_and_hang", {}, tmp_path / "a.log")
        job = child.expect("pid", 60)
        zygote._process.kill()
        zygote._process.wait()
        assert ends(lambda: alive(child.group) or alive(job))
        with pytest.raises(JobError):
            zygote.spawn("a job", "support.jobs:return_value", {"value": 1}, tmp_path / "a.log")


def test_a_lent_zygote(zygote: Zygote, tmp_path: Path) -> None:
    """Closing a borrower ends the jobs of that borrower only."""
    arguments: dict[str, Any] = {
        "function": "support.jobs:ignore_the_channel_and_sleep",
        "arguments": {},
        "log": tmp_path / "l",
    }
    with zygote.lend() as mine, zygote.lend() as theirs:
        child, other = mine.spawn("a job", **arguments), theirs.spawn("another", **arguments)
        mine.close()
        assert ends(lambda: alive(child.group))
        assert alive(other.group)
        assert (mine.alive, theirs.alive, theirs.lend().alive) == (False, True, True)
        with pytest.raises(JobError, match="stopped before it began"):
            mine.spawn("late", **arguments)
        assert theirs.run("a job", "support.jobs:return_value", {"value": 1}, tmp_path / "log", 60) == 1
    assert ends(lambda: alive(other.group))


def test_consecutive_runs_share_zygotes(tmp_path: Path) -> None:
    """There is one zygote for each environment, and a dead one is replaced."""

    def number(zygotes: Zygotes, environment: dict[str, str] | None = None) -> int:
        with zygotes(environment) as zygote:
            return int(zygote.run("a job", "support.jobs:zygote_pid", {}, tmp_path / "log", 60))

    with Zygotes() as zygotes:
        first = number(zygotes)
        assert first == number(zygotes)
        other = number(zygotes, {"OMP_WAIT_POLICY": "PASSIVE"})
        assert other != first
        os.kill(first, signal.SIGKILL)
        assert ends(lambda: alive(first))
        again = number(zygotes)
        assert again not in (first, other)
    assert ends(lambda: alive(again) or alive(other))


def test_finished_jobs_are_forgotten(tmp_path: Path) -> None:
    """Its process ID may soon be reused."""
    with Zygote() as zygote:
        hung = zygote.spawn("a job", "support.jobs:ignore_the_channel_and_sleep", {}, tmp_path / "log")
        hung.kill()
        assert hung.finished
        for _ in range(3):
            zygote.run("a job", "support.jobs:return_value", {"value": 1}, tmp_path / "log", 60)
        assert ends(lambda: alive(hung.group))
        last = zygote.spawn("a job", "support.jobs:return_value", {"value": 1}, tmp_path / "log")
        last.wait(60)
        children = Path(f"/proc/{zygote._process.pid}/task/{zygote._process.pid}/children").read_text().split()
        assert str(hung.group) not in children
        assert len(zygote._children) <= 2


def test_a_parent_that_ignores_sigchld(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        zygote = Zygote()
    finally:
        signal.signal(signal.SIGCHLD, before)
    with zygote:
        given = [zygote.run("a job", "support.jobs:return_value", {"value": n}, tmp_path / "log", 60) for n in range(3)]
    assert given == [0, 1, 2]


def test_a_preloaded_module_that_cannot_be_imported(tmp_path: Path) -> None:
    (tmp_path / "broken_module.py").write_text("raise AttributeError('of another release')")
    with Zygote({"PYTHONPATH": f"{tmp_path}:{os.environ['PYTHONPATH']}"}, ("broken_module", "nowhere")) as zygote:
        assert zygote.run("a job", "support.jobs:return_value", {"value": 1}, tmp_path / "log", 60) == 1


def test_a_zygote_prepares_more_while_it_waits(tmp_path: Path) -> None:
    """Not before its first job. A group ends with what fails, crashes, exits or starts a thread in a child."""
    text = "import sys\ndef act(): sys.modules['acted'] = sys\ndef wrong(): sys.modules['wrong'] = sys"
    (tmp_path / "prepared.py").write_text(text)
    (tmp_path / "crashing.py").write_text("import os\nos.abort()")
    (tmp_path / "exiting.py").write_text("import sys\nsys.exit()")
    (tmp_path / "threads.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=[9]).start()"
    )
    bad = ("nowhere", "crashing", "exiting", "threads", "prepared:nothing", "torch.nowhere")
    later = (*(f"{one},prepared:wrong" for one in bad), "sys,prepared:act")

    def acted() -> bool:
        time.sleep(0.3)  # it prepares nothing while requests come
        found = zygote.run("a job", "support.jobs:modules", {}, tmp_path / "log", 60)
        assert not {"wrong", "threads", "exiting"} & set(found)
        return "acted" in found

    with Zygote({"PYTHONPATH": f"{tmp_path}:{os.environ['PYTHONPATH']}"}, later=later) as zygote:
        assert not acted()
        assert ends(lambda: not acted())


@pytest.mark.parametrize(
    ("code", "words", "signal"),
    [
        (None, "was killed from outside", ""),
        (0, "ended with exit code 0 and no result", ""),
        (-11, "was ended by SIGSEGV", "SIGSEGV"),
        (-4, "was ended by SIGILL (built for another processor?)", "SIGILL"),
        (-99, "was ended by signal 99", "signal 99"),
    ],
)
def test_descriptions_of_exit_codes(code: int | None, words: str, signal: str) -> None:
    error = ended("a job", code, "its log")
    assert (str(error), error.log, error.signal) == (f"a job {words}", "its log", signal)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.log, again.signal) == (str(error), "its log", signal)


def test_a_missing_log() -> None:
    import socket

    ours, theirs = socket.socketpair()
    theirs.close()
    child = Child("x", ours, 2**22, Path("/nowhere/x.log"))
    assert child.tail() == ""
    with pytest.raises(JobError, match="killed from outside"):
        child.wait(1)
    child.close()
