"""The parent's side of a session, for sessions in Python and in C++."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from exporter.core import runners
from exporter.core.errors import ArtifactError, ExporterError, JobError
from exporter.core.json_codec import from_json
from exporter.core.profile_records import Steps
from exporter.workers.children import LOG_LINES, Child, ended, stand_back

GRACE_S = 3.0  # time to quit and to remove unpacked files


class Session(ABC):
    """A running session. Requests raise JobError if the session hangs or dies, or the error that it reports."""

    def __init__(self, name: str, timeout: float) -> None:
        self.name, self.timeout = name, timeout
        self.ready: dict[str, Any] = {}
        self.peak_rss_mb: float | None = None
        self.notes: tuple[str, ...] = ()  # notes of the check
        self.unpropagated: tuple[str, ...] | None = None  # NaN and infinity that the check found lost; None: not tried
        self.refused: frozenset[str] = frozenset()  # golden cases that the contract refused during the check

    def start(self) -> None:
        """Wait until the artifact is loaded, and store the session's first message in `ready`."""
        self.ready = self._receive("ready")

    def check(self) -> list[dict[str, Any]]:
        """Check every golden case and return the `cases` of the answer."""
        answer = self._ask("check")
        self.notes = tuple(answer.get("notes", ()))
        lost = answer.get("unpropagated")
        self.unpropagated = None if lost is None else tuple(lost)
        cases: list[dict[str, Any]] = answer["cases"]
        self.refused = frozenset(case["case"] for case in cases if case.get("refused"))
        return cases

    def time(self, runs: int, case: str = "") -> list[float]:
        """Return the milliseconds of each of `runs` calls of a golden case, by default the example."""
        samples: list[float] = self._ask(f"time {runs} {case}".rstrip())["samples_ms"]
        return samples

    def profile(self, runs: int) -> Steps:
        """Return the steps of the typical call of `runs` calls of the example."""
        return from_json(Steps, json.dumps(self._ask(f"profile {runs}")["steps"]))

    def outputs(self, file: Path) -> None:
        """Write the session's outputs for the golden's samples to `file` (torch.save): a list of tensors for each."""
        self._ask(f"outputs {quote(str(file))}")

    def _ask(self, request: str) -> dict[str, Any]:
        try:
            self._write(request + "\n")
        except (OSError, ValueError):  # ValueError: closed after an earlier timeout
            raise self._ended() from None
        answer = self._receive(request.split()[0])
        self.peak_rss_mb = answer.get("peak_rss_mb")
        self.ready["provider"] = answer.get("provider", self.ready.get("provider", ""))
        return answer

    def _receive(self, event: str) -> dict[str, Any]:
        try:
            line = self._readline(self.timeout)
        except TimeoutError:
            self.close()
            raise JobError(
                f"{self.name} did not answer {event!r} within {self.timeout:.0f} s and was stopped",
                "raise --timeout",
                self._tail(),
            ) from None
        try:
            answer: dict[str, Any] = json.loads(line)
            known = answer["event"] in (event, "error")
        except (ValueError, TypeError, KeyError):
            known = False
        if not known:
            raise self._ended(line)
        if answer["event"] == "error":
            kind = ArtifactError if answer["kind"] in ("artifact", "golden", "contract") else JobError
            raise kind(answer["message"], answer.get("remedy", ""))
        return answer

    @abstractmethod
    def _write(self, text: str) -> None: ...

    @abstractmethod
    def _readline(self, timeout: float) -> str: ...

    @abstractmethod
    def _ended(self, line: str = "") -> ExporterError:
        """Return the error that explains why there is no valid answer; `line` is what was received instead."""

    @abstractmethod
    def _tail(self) -> str: ...

    @property
    @abstractmethod
    def pid(self) -> int:
        """Return the id of the process, or of its process group for Python."""

    @abstractmethod
    def close(self) -> None:
        """End the process: ask it to quit, then kill it."""


class PythonSession(Session):
    """A session in a child of the zygote."""

    def __init__(self, child: Child, timeout: float) -> None:
        super().__init__(child.name, timeout)
        self._child = child

    def _write(self, text: str) -> None:
        self._child.channel.sendall(text.encode())

    def _readline(self, timeout: float) -> str:
        return self._child.readline(timeout)

    def _ended(self, line: str = "") -> ExporterError:
        try:
            self._child.conclude(line, self.timeout)
        except ExporterError as error:
            return error
        return JobError(f"{self.name} ended early", "", self._tail())

    def _tail(self) -> str:
        return self._child.tail()

    @property
    def pid(self) -> int:
        return self._child.group

    def close(self) -> None:
        with contextlib.suppress(OSError, TimeoutError, ValueError, ExporterError):
            self._write("quit\n")
            self._child.wait(GRACE_S)
        self._child.kill()


class NativeSession(Session):
    """A session in `exporter-run`. Its messages lose the artifact's path: the artifact may not have moved there yet."""

    def __init__(
        self,
        name: str,
        command: list[str],
        log: Path,
        timeout: float,
        environment: Mapping[str, str] | None = None,
        niceness: int = 0,
    ) -> None:
        super().__init__(name, timeout)
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=output,
                    start_new_session=True,
                    env={**os.environ, **(environment or {})},
                )
            except OSError as error:
                raise JobError(f"{command[0]} cannot be started: {error.strerror}", runners.REMEDY) from error
        with contextlib.suppress(ProcessLookupError):  # threads started from now on inherit the niceness
            stand_back(niceness, self._process.pid)
        self._buffer = b""
        artifact = command[command.index("session") + 1] if "session" in command else ""
        self._prefix = json.dumps(f"{artifact}: ", ensure_ascii=False)[1:-1] if artifact else ""

    def _write(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text.encode())
        self._process.stdin.flush()

    def _readline(self, timeout: float) -> str:
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(deadline - time.monotonic(), 0)):
                    raise TimeoutError
                data = os.read(self._process.stdout.fileno(), 1 << 16)
                if not data:
                    return ""
                self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode().replace(self._prefix, "") if self._prefix else line.decode()

    def _ended(self, line: str = "") -> ExporterError:
        if line:
            return JobError(
                f"{self.name} answered {line[:80]!r}, which is not a valid message",
                runners.REMEDY,
                self._tail(),
            )
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        return ended(self.name, self._process.poll(), self._tail())

    def _tail(self) -> str:
        with contextlib.suppress(OSError):
            return "\n".join(self._log.read_text(errors="replace").splitlines()[-LOG_LINES:])
        return ""

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        with contextlib.suppress(OSError, ValueError, subprocess.TimeoutExpired):
            self._write("quit\n")
            self._process.wait(GRACE_S)
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
