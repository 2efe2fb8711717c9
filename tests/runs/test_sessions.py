"""Sessions are opened, judged, and then kept or closed, even after an error."""

from __future__ import annotations

from typing import Any

import pytest

from exporter.core.errors import JobError
from exporter.core.records import SessionRecord, VariantRecord
from exporter.runs import session_checks
from exporter.runs.sessions import Sessions

RECORD = VariantRecord("trace", "trace", "pending")


class Fake:
    """A session that records whether it was closed."""

    def __init__(self, status: str = "passed") -> None:
        self.status, self.closed = status, False

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def _check(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(kind: str, open_session: Any, *_: Any) -> Any:
        session = open_session()
        return SessionRecord(kind, session.status), session

    monkeypatch.setattr(session_checks, "check", check)


def judge(sessions: Sessions, *fakes: Fake, **settings: Any) -> list[str]:
    openers: Any = [(f"kind{i}", lambda fake=fake: fake) for i, fake in enumerate(fakes)]
    return [found.status for found in sessions.judge(RECORD, None, openers, **settings)]


def test_sessions_are_closed_unless_kept() -> None:
    one, other, kept = Fake(), Fake("failed"), Fake()
    with Sessions() as sessions:
        assert judge(sessions, one, other) == ["passed", "failed"]
        assert one.closed
        assert other.closed
        assert judge(sessions, kept, keep="trace") == ["passed"]
        assert not kept.closed
        assert sessions.kept == {("trace", "kind0"): kept}
    assert kept.closed
    assert sessions.kept == {}


@pytest.mark.parametrize("only_passing", [False, True])
def test_failed_sessions_are_kept_unless_only_passing(only_passing: bool) -> None:
    right, wrong = Fake(), Fake("failed")
    with Sessions(only_passing=only_passing) as sessions:
        judge(sessions, right, wrong, keep="trace")
        assert not right.closed
        assert wrong.closed == only_passing


def test_a_visitor_gets_an_open_session_and_may_change_its_record() -> None:
    def visit(kind: str, found: SessionRecord, session: Any) -> SessionRecord:
        assert not session.closed
        return SessionRecord(kind, "failed", reason="from its cache")

    with Sessions() as sessions:
        assert judge(sessions, Fake(), visit=visit) == ["failed"]


def test_a_session_is_closed_if_its_visitor_raises() -> None:
    def visit(*_: Any) -> SessionRecord:
        raise KeyboardInterrupt

    fake = Fake()
    with Sessions() as sessions, pytest.raises(KeyboardInterrupt):
        judge(sessions, fake, keep="trace", visit=visit)
    assert fake.closed
    assert sessions.kept == {}


def test_no_session_is_opened_after_stop() -> None:
    with Sessions() as sessions:
        sessions.stop()
        assert sessions.stopped
        with pytest.raises(JobError, match="stopped"):
            judge(sessions, Fake())
