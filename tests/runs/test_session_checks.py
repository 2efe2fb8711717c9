"""What is recorded about a session besides its outputs."""

from __future__ import annotations

import pytest

from exporter.core import causes, environment
from exporter.core.contract_records import Contract
from exporter.core.errors import ExporterError, JobError
from exporter.core.parity_records import CaseRecord, Tolerance
from exporter.core.records import ArtifactRecord, GoldenRecord, SessionRecord, VariantRecord
from exporter.runs import session_checks


@pytest.mark.parametrize(
    ("device", "said", "grown"),
    [
        ("cuda:1", [100.0, 350.0], 250.0),
        ("cuda:1", [100.0, 90.0], 0.0),
        ("cuda:1", [None], None),
        ("cuda:1", [100.0, None], None),
        ("cpu", [], None),
    ],
)
def test_gpu_memory_is_measured(
    monkeypatch: pytest.MonkeyPatch, device: str, said: list[float | None], grown: float | None
) -> None:
    """It is read before and after, for that GPU only; on the CPU it is not read."""
    asked: list[str] = []
    answers = iter([*said, None])

    def ask(device: str) -> float | None:
        asked.append(device)
        return next(answers)

    monkeypatch.setattr(environment, "gpu_memory_mb", ask)
    record, _ = session_checks.watch_gpu_memory(device, lambda: (SessionRecord("python", "passed"), None))
    assert record.gpu_mb == grown
    assert asked == [device] * len(said)


def test_an_error_of_an_artifact_has_a_cause() -> None:
    """A run uses the cause to report the memory that was needed."""
    record = VariantRecord("trace", "trace", "pending")
    error = "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
    answer = [{"case": "batch=64", "seed": 0, "error": error, "outputs": []}]
    session = session_checks._judged(SessionRecord("python", "failed", "check"), answer, None, record, None)
    assert (session.cause, session_checks.conclude(record, (session,)).cause) == ("out-of-memory", "out-of-memory")
    assert session.remedy


@pytest.mark.parametrize(
    ("failing", "lost"), [("batch=2", None), ("batch=2 zeros", ("it is lost",)), ("batch=3", ("it is lost",))]
)
def test_an_artifact_that_fails_at_the_example_is_not_said_to_lose_nan(
    failing: str, lost: tuple[str, ...] | None
) -> None:
    names = "batch=2", "batch=2 zeros", "batch=3"
    cases = [CaseRecord(name, 0, {"batch": int(name[6])}, name[8:]) for name in names]
    passing = {"output": "y", "verdict": "exact", "reason": "", "worst": [0], "cause": ""}
    numbers = dict.fromkeys(("max_abs", "max_rel", "rmse_ratio", "cosine"))
    answer = [
        {"case": name, "seed": 0, "error": "boom" * (name == failing), "outputs": [passing | numbers]} for name in names
    ]
    golden = GoldenRecord(
        ArtifactRecord("golden.pt", 1, "0" * 64), tuple(cases), "float64", Tolerance(0, 0, 1), None, True
    )
    record = VariantRecord("onnx", "onnx", "pending")
    found = session_checks._judged(SessionRecord("python", "failed", "check"), answer, ("it is lost",), record, golden)
    assert found.parity is not None
    assert (found.parity.verdict, found.parity.unpropagated) == ("FAIL", lost)


def test_an_error_that_eager_makes_too_is_noted() -> None:
    record = VariantRecord("trace@bf16", "trace", "passed", contract=Contract("m", (), (), {}, precision="bf16"))
    output = {"output": "y", "verdict": "drift", "reason": "eager's error is 2", "worst": [0], "cause": ""}
    numbers = dict.fromkeys(("max_abs", "max_rel", "rmse_ratio", "cosine"))
    answer = [{"case": "batch=2 zeros", "seed": 0, "error": "", "outputs": [output | numbers]}]
    session = session_checks._judged(SessionRecord("python", "failed", "check"), answer, None, record, None)
    assert (session.status, session.reason) == ("passed", "")
    assert session_checks.conclude(record, (session, session)).notes == ("y at batch=2 zeros: eager's error is 2",)


@pytest.mark.parametrize(("cause", "remedy"), [("too-coarse", "samples() in the recipe"), ("", causes.INT8)])
def test_a_quantized_variant_has_a_remedy(cause: str, remedy: str) -> None:
    record = VariantRecord("onnx@int8", "onnx", "passed", contract=Contract("m", (), (), {}, precision="int8"))
    output = {"output": "y", "verdict": "FAIL", "reason": "as it is", "worst": [0], "cause": cause}
    numbers = dict.fromkeys(("max_abs", "max_rel", "rmse_ratio", "cosine"))
    answer = [{"case": "batch=2", "seed": 0, "error": "", "outputs": [output | numbers]}]
    session = session_checks._judged(SessionRecord("python", "failed", "check"), answer, None, record, None)
    assert (session.reason, session.cause) == ("y at batch=2: as it is", cause)
    assert remedy in session_checks.conclude(record, (session,)).remedy


@pytest.mark.parametrize(
    ("said", "log", "text", "signal"),
    [
        (
            "compile (python) was ended by SIGABRT",
            "loading\nterminate called after throwing 'c10::Error'\n  what():  expected s0 to be 14\n#1 0x\n",
            "compile (python) was ended by SIGABRT, last output: expected s0 to be 14",
            "SIGABRT",
        ),
        ("x was ended by SIGSEGV", "one\ntwo\n\n", "x was ended by SIGSEGV, last output: two", "SIGSEGV"),
        ("x was ended by SIGABRT", "\n", "x was ended by SIGABRT", "SIGABRT"),
        ("x was ended by SIGKILL (out of memory?)", "one", "x was ended by SIGKILL (out of memory?)", "SIGKILL"),
        ("x took longer than 3 s", "one", "x took longer than 3 s", ""),
    ],
)
def test_a_crash_is_reported_with_the_last_output(said: str, log: str, text: str, signal: str) -> None:
    assert session_checks.crashed(JobError(said, "", log, signal)) == text
    assert session_checks.crashed(ExporterError(said)) == said


@pytest.mark.parametrize(("target", "cause"), [("onnx", "onnxruntime-crashed"), ("trace", ""), ("compile", "")])
def test_a_crash_is_blamed_on_the_library_of_its_target(target: str, cause: str) -> None:
    error = JobError(f"{target} (python) was ended by SIGSEGV", "", "", "SIGSEGV")
    record = VariantRecord(target, target, "pending")
    assert session_checks._failed(SessionRecord("python", "failed", "load"), error, record).cause == cause
