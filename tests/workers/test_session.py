"""The line protocol (docs/formats.md): the child's side, and the parent's with every way a session can end."""

from __future__ import annotations

import json
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from exporter import targets
from exporter.core import tolerances
from exporter.core.errors import ArtifactError, JobError
from exporter.core.parity_records import CaseRecord, Tolerance
from exporter.evidence import golden as goldens
from exporter.evidence.golden import Case, Golden
from exporter.workers.children import SIDE_BY_SIDE, Zygote
from exporter.workers.session import server
from exporter.workers.session.client import NativeSession, PythonSession, Session


@pytest.fixture(scope="module")
def golden_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A golden with two cases of a model that doubles its input."""
    path = tmp_path_factory.mktemp("golden") / "golden.safetensors"
    cases = []
    for batch in (2, 3):
        x = torch.arange(batch * 2, dtype=torch.float32).reshape(batch, 2)
        cases.append(Case(CaseRecord(f"batch={batch}", sizes={"batch": batch}), (x,), (2 * x,), (2 * x.double(),)))
    goldens.save(Golden(tuple(cases), Tolerance(1e-4, 1e-5, 2.0)), path)
    return path


class Line:
    """The parent's end of a session that runs in a thread."""

    def __init__(self, load: Callable[[], targets.Loaded], golden: Path) -> None:
        self.socket, theirs = socket.socketpair()
        self.raised: list[BaseException] = []
        threads = torch.get_num_threads()

        def act() -> None:
            with theirs:
                try:
                    server.serve(theirs, load, str(golden), ("y",), targets.Options(threads=threads))
                except BaseException as error:
                    self.raised.append(error)

        self.thread = threading.Thread(target=act)
        self.thread.start()
        self.lines = self.socket.makefile("r")

    def ask(self, request: str) -> dict[str, Any]:
        self.socket.sendall(request.encode() + b"\n")
        return self.hear()

    def hear(self) -> dict[str, Any]:
        return json.loads(self.lines.readline())

    def end(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)
        self.thread.join(60)
        self.lines.close()
        self.socket.close()


@pytest.fixture
def line(golden_path: Path) -> Iterator[Callable[..., Line]]:
    opened: list[Line] = []

    def act(run: Callable[..., Any] = lambda inputs: tuple(2 * t for t in inputs), golden: Path = golden_path) -> Line:
        def load() -> targets.Loaded:
            return targets.Loaded(run, lambda: "Imaginary")

        opened.append(Line(load, golden))
        return opened[-1]

    yield act
    for one in opened:
        one.end()


def test_ready_describes_the_session(line) -> None:
    ready = line().hear()
    assert ready.pop("load_s") >= 0
    assert ready == {"event": "ready", "protocol": 1, "language": "python", "device": "cpu", "provider": "Imaginary"}


def test_a_check(line) -> None:
    session = line()
    session.hear()
    answer = session.ask("check")
    assert answer["event"] == "check"
    assert answer["peak_rss_mb"] > 10
    assert [case["case"] for case in answer["cases"]] == ["batch=2", "batch=3"]
    output = answer["cases"][0]["outputs"][0]
    assert (output["output"], output["verdict"], output["max_abs"]) == ("y", "exact", 0.0)
    assert set(answer["cases"][0]) == {"case", "seed", "error", "outputs"}
    assert set(output) == {
        *("output", "verdict", "reason", "max_abs", "max_rel", "rmse", "eager_rmse", "rmse_ratio", "cosine", "worst"),
        "cause",
    }


def test_a_wrong_value_fails(line) -> None:
    session = line(lambda inputs: tuple(2 * t + (len(t) == 3) for t in inputs))
    session.hear()
    verdicts = [case["outputs"][0]["verdict"] for case in session.ask("check")["cases"]]
    assert verdicts == ["exact", "FAIL"]


def test_a_case_that_raises_is_in_the_answer(line) -> None:
    def run(inputs: Any) -> Any:
        if len(inputs[0]) == 3:
            raise RuntimeError("not with\nthree")
        return tuple(2 * t for t in inputs)

    session = line(run)
    session.hear()
    good, bad = session.ask("check")["cases"]
    assert (good["error"], bad["outputs"]) == ("", [])
    assert re.fullmatch(r"not with three \(.*/test_session\.py:\d+\)", bad["error"]), "with its line"


def test_the_number_of_outputs_is_checked(line) -> None:
    session = line(lambda inputs: inputs + inputs)
    session.hear()
    assert session.ask("check")["cases"][0]["error"] == "2 outputs, expected 1"


def test_a_wrong_dtype_fails(line) -> None:
    session = line(lambda inputs: tuple((2 * t).bfloat16() for t in inputs))
    session.hear()
    assert session.ask("check")["cases"][0]["outputs"][0]["reason"] == "dtype bfloat16, expected float32"


def test_time(line) -> None:
    calls: list[int] = []
    session = line(lambda inputs: calls.append(1) or inputs)
    session.hear()
    answer = session.ask("time 7")
    assert answer["event"] == "time"
    assert len(answer["samples_ms"]) == 7 == len(calls)
    assert all(sample >= 0 for sample in answer["samples_ms"])


def test_time_of_one_case(line) -> None:
    sizes: list[int] = []
    session = line(lambda inputs: sizes.append(len(inputs[0])) or inputs)
    session.hear()
    assert len(session.ask("time 2 batch=3")["samples_ms"]) == 2
    session.ask("time 1")
    assert sizes == [3, 3, 2], "without a name, the example is timed"
    answer = session.ask("time 1 batch=9")
    assert (answer["kind"], answer["message"]) == ("usage", "the golden has no case 'batch=9'")


@pytest.mark.parametrize("request_", ["dance", "time", "time x", "time -1", "time 1 2", "check now", ""])
def test_invalid_requests_are_errors(line, request_: str) -> None:
    session = line()
    session.hear()
    answer = session.ask(request_)
    assert (answer["event"], answer["kind"]) == ("error", "usage")
    assert session.ask("time 1")["event"] == "time", "the session still answers"


def test_a_call_that_raises_does_not_end_the_session(line) -> None:
    def run(inputs: Any) -> Any:
        raise RuntimeError("no")

    session = line(run)
    session.hear()
    answer = session.ask("time 1")
    assert (answer["event"], answer["kind"]) == ("error", "runtime")
    assert re.fullmatch(r"no \(.*/test_session\.py:\d+\)", answer["message"]), "with its line"
    assert session.ask("check")["event"] == "check"


def test_quit(line) -> None:
    session = line()
    session.hear()
    session.socket.sendall(b"quit\n")
    assert session.lines.readline() == ""
    session.thread.join(60)
    assert session.raised == []


def test_an_unreadable_golden_is_reported_before_ready(line, tmp_path: Path) -> None:
    (tmp_path / "golden.safetensors").write_bytes(b"nothing of the kind")
    session = line(golden=tmp_path / "golden.safetensors")
    answer = session.hear()
    assert (answer["event"], answer["kind"]) == ("error", "artifact")
    session.thread.join(60)
    assert isinstance(session.raised[0], ArtifactError)


# The parent's side.


@pytest.fixture
def open_session(zygote: Zygote, golden_path: Path, tmp_path: Path) -> Iterator[Callable[..., Session]]:
    opened: list[Session] = []

    def act(behaviour: str = "works", timeout: float = 60) -> Session:
        arguments = {"behaviour": behaviour, "golden": str(golden_path)}
        child = zygote.spawn("toy (python)", "support.jobs:serve", arguments, tmp_path / "toy.log")
        opened.append(PythonSession(child, timeout))
        return opened[-1]

    yield act
    for session in opened:
        session.close()


def test_a_session_in_a_child(open_session) -> None:
    session = open_session()
    session.start()
    assert session.ready["provider"] == "Imaginary"
    assert len(session.time(3)) == 3
    assert [case["outputs"][0]["verdict"] for case in session.check()] == ["exact", "exact"]
    assert session.peak_rss_mb is not None
    assert session.peak_rss_mb > 10


def test_a_session_that_crashes_during_loading(open_session) -> None:
    with pytest.raises(JobError, match=r"toy \(python\) was ended by SIGABRT"):
        open_session("dies at load").start()


def test_a_session_that_crashes_at_a_request(open_session) -> None:
    session = open_session("dies")
    session.start()
    with pytest.raises(JobError, match="was ended by SIGSEGV"):
        session.check()
    with pytest.raises(JobError):
        session.time(1)


def test_a_session_that_hangs(open_session) -> None:
    with pytest.raises(JobError, match="did not answer 'ready' within 1 s and was stopped") as raised:
        open_session("hangs at load", timeout=0.5001).start()
    assert raised.value.remedy == "raise --timeout"
    session = open_session("hangs")
    session.start()
    session.timeout = 0.5001
    with pytest.raises(JobError, match="did not answer 'time'"):
        session.time(1)


def test_an_error_answer_is_raised(open_session) -> None:
    session = open_session("raises")
    session.start()
    with pytest.raises(JobError, match="not with these inputs"):
        session.time(1)
    assert re.fullmatch(r"not with these inputs \(.*/jobs\.py:\d+\)", session.check()[0]["error"])


def test_a_session_of_an_artifact_imports_no_model_code(zygote: Zygote, made_bundle: Path, tmp_path: Path) -> None:
    """The child lists its modules: neither the recipe, nor transformers, nor our recipes are among them."""
    script = (
        "import sys, json, pathlib, socket\n"
        "from exporter import targets\n"
        "from exporter.workers.session import server\n"
        "from exporter.targets import Options\n"
        "a, b = socket.socketpair()\n"
        "a.sendall(b'check\\nquit\\n')\n"
        "target, path, golden = sys.argv[1:]\n"
        "recorded = targets.get(target).read_contract(pathlib.Path(path))\n"
        "server.serve_artifact(b, target, path, golden, recorded, Options())\n"
        "b.close()\n"
        "said = [json.loads(line) for line in a.makefile()]\n"
        "print(json.dumps([said, sorted(sys.modules)]))\n"
    )
    import subprocess

    for target, file in (("trace", "trace.pt"), ("export", "exported.pt2"), ("onnx", "model.onnx")):
        words = [target, made_bundle / file, made_bundle / "golden.safetensors"]
        command = [sys.executable, "-W", "ignore", "-c", script, *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        said, modules = json.loads(done.stdout.splitlines()[-1])
        assert [message["event"] for message in said] == ["ready", "check"]
        assert all(output["verdict"] != "FAIL" for case in said[1]["cases"] for output in case["outputs"])
        strangers = {"transformers", "torchvision", "exporter_models", "tiny", "recipes_shared"}
        assert strangers.isdisjoint(modules), target


# exporter-run's side of the protocol, simulated by shell scripts.


@pytest.fixture
def native(tmp_path: Path) -> Iterator[Callable[..., NativeSession]]:
    opened: list[NativeSession] = []

    def act(script: str, timeout: float = 60) -> NativeSession:
        opened.append(NativeSession("toy (native)", ["sh", "-c", script], tmp_path / "logs" / "toy.log", timeout))
        return opened[-1]

    yield act
    for session in opened:
        session.close()


READY = """echo '{"event": "ready", "load_s": 0.1, "provider": ""}'; """


def test_a_native_session_has_the_priority_and_environment_of_its_options(tmp_path: Path) -> None:
    """Its niceness comes from its options, and its environment is that of Python sessions."""
    script = READY + """read request; echo "$OMP_WAIT_POLICY $(nice)" >&2; exit 1"""
    log = tmp_path / "toy.log"
    session = NativeSession("toy (native)", ["sh", "-c", script], log, 60, SIDE_BY_SIDE, 10)
    session.start()
    with pytest.raises(JobError, match="ended with exit code 1"):
        session.check()
    session.close()
    assert log.read_text() == "PASSIVE 10\n"


def test_a_native_session(native) -> None:
    session = native(READY + """read request; echo '{"event": "time", "samples_ms": [1, 2], "peak_rss_mb": 3}'""")
    session.start()
    assert session.time(2) == [1, 2]
    assert session.peak_rss_mb == 3


def test_messages_of_a_native_session_lose_the_path_of_the_artifact(tmp_path: Path) -> None:
    path = tmp_path / ".toy.staging" / 'a "quoted" é.pt2'
    message = f"batch=2: {path}: no kernel"
    answer = json.dumps({"event": "error", "kind": "artifact", "message": message}, ensure_ascii=False)
    script = tmp_path / "runner"
    script.write_text(f"#!/bin/sh\n{READY}read request\ncat <<'END'\n{answer}\nEND\n")
    script.chmod(0o755)
    session = NativeSession("toy (native)", [str(script), "session", str(path)], tmp_path / "log", 60)
    session.start()
    with pytest.raises(ArtifactError, match=r"^batch=2: no kernel$"):
        session.check()
    session.close()


def test_a_native_session_answers_in_pieces(native) -> None:
    session = native(READY + """read r; printf '{"event": "time", "samp'; sleep 0.1; echo 'les_ms": [5]}'""")
    session.start()
    assert session.time(1) == [5]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo no such file >&2; exit 1", "ended with exit code 1 and no result"),
        ("kill -SEGV $$", "was ended by SIGSEGV"),
        ("echo hello; sleep 60", "answered 'hello', which is not a valid message"),
        ("echo '{hello'; sleep 60", "which is not a valid message"),
        ("""echo '{"event": "surprise"}'; sleep 60""", "which is not a valid message"),
        ("sleep 60", "did not answer 'ready'"),
    ],
)
def test_a_native_session_that_fails(native, script: str, message: str) -> None:
    timeout = 0.6 if script == "sleep 60" else 60
    with pytest.raises(JobError, match=message):
        native(script, timeout).start()


def test_the_log_of_a_native_session_is_kept(native) -> None:
    with pytest.raises(JobError) as raised:
        native("echo libtorch.so is not there >&2; exit 127").start()
    assert "libtorch.so is not there" in raised.value.log


def test_errors_of_a_native_session_keep_their_kind(native) -> None:
    for kind, cls in (("artifact", ArtifactError), ("golden", ArtifactError), ("runtime", JobError)):
        with pytest.raises(cls, match="so it is"):
            native("""echo '{"event": "error", "kind": "KIND", "message": "so it is"}'""".replace("KIND", kind)).start()


def test_a_native_session_that_crashed_between_requests(native) -> None:
    session = native(READY)
    session.start()
    session._process.wait()
    with pytest.raises(JobError, match="ended with exit code 0"):
        session.time(1)


def test_each_output_is_judged_by_the_tolerance_of_its_dtype() -> None:
    exact = torch.ones(3, dtype=torch.float64)
    cases = (Case(CaseRecord("a"), (exact,), (exact, exact.float()), (exact, exact)),)

    def judged(error: float, **others: Tolerance) -> list[str]:
        judge = server.Judge(Golden(cases, tolerances.FLOAT64, tolerances=others), ("y", "z"))
        return [one.verdict for one in judge.compare((exact + error, exact.float() + error), cases[0])]

    assert judged(1e-6) == ["FAIL", "FAIL"], "a golden of an earlier release"
    assert judged(1e-6, float32=tolerances.FLOAT32) == ["FAIL", "rounding"]
    assert judged(1e-3, float32=tolerances.FLOAT32) == ["FAIL", "FAIL"]


def test_a_small_value_is_judged_by_the_typical_size_of_its_output() -> None:
    values = [torch.tensor([v]) for v in (0.1, 2.0, -2.0, 3.0)]
    cases = tuple(Case(CaseRecord(f"case {v.item():g}"), (v,), (v,), (v.double(),)) for v in values)

    def judged(got: float, tolerance: Tolerance) -> str:
        (found,) = server.Judge(Golden(cases, tolerance), ("y",)).compare((torch.tensor([got]),), cases[0])
        return found.verdict

    coarse = Tolerance(1e-4, 1e-5, 2.0, min_cosine=0.995)
    assert [judged(got, coarse) for got in (-0.05, -0.2)] == ["quantized", "FAIL"]
    assert judged(-0.05, Tolerance(1e-4, 1e-5, 2.0)) == "FAIL"
