"""The sessions of a command: open them, judge them, keep those open that will be timed, and end them together."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

from exporter.core.errors import JobError
from exporter.core.records import GoldenRecord, SessionRecord, VariantRecord
from exporter.runs import session_checks
from exporter.runs.latency import Key
from exporter.workers.session.client import Session

Visit = Callable[[str, SessionRecord, Session | None], SessionRecord]


def _as_found(kind: str, found: SessionRecord, session: Session | None) -> SessionRecord:
    return found


class Sessions:
    """Context manager that ends every session on exit. Safe to use from several threads.

    `device` is the GPU whose memory growth is measured; "cpu" measures none. Sessions that will be timed wait in
    `kept`, by name and kind; with `only_passing`, sessions that failed are closed instead.
    """

    def __init__(self, device: str = "cpu", only_passing: bool = False) -> None:
        self.device, self.only_passing = device, only_passing
        self.kept: dict[Key, Session] = {}
        self._opened: list[Session] = []
        self._stopped = False
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def judge(
        self,
        record: VariantRecord,
        golden: GoldenRecord | None,
        openers: Iterable[tuple[str, session_checks.Opener]],
        keep: str = "",
        visit: Visit = _as_found,
    ) -> tuple[SessionRecord, ...]:
        """Judge each session of a variant. `visit` gets each record while the session is open, and may change it.

        Sessions are kept under the name `keep`, or closed if it is "". Raises JobError after `stop`.
        """
        results: list[SessionRecord] = []
        for kind, open_session in openers:
            if old := self.kept.pop((keep, kind), None):  # of an artifact that another one replaces
                old.close()
            check = functools.partial(
                session_checks.check, kind, functools.partial(self._open, open_session), record, golden
            )
            found, session = session_checks.watch_gpu_memory(self.device, check)
            kept = False
            try:
                results.append(visit(kind, found, session))
                if self._stopped:
                    raise JobError("stopped")
                kept = bool(keep) and (results[-1].status == "passed" or not self.only_passing)
            finally:
                if session is not None and kept:
                    self.kept[keep, kind] = session
                elif session is not None:
                    session.close()
        return tuple(results)

    def _open(self, open_session: session_checks.Opener) -> Session:
        """Open a session and register it, so that `close` ends it from any thread."""
        with self._lock:
            if self._stopped:
                raise JobError("stopped")
            session = open_session()
            self._opened.append(session)
        return session

    @property
    def stopped(self) -> bool:
        """Return whether `stop` was called."""
        return self._stopped

    def stop(self) -> None:
        """Refuse to open further sessions."""
        with self._lock:
            self._stopped = True

    def close(self) -> None:
        """End every session."""
        for session in self._opened:
            session.close()
        self._opened.clear()
        self.kept.clear()
