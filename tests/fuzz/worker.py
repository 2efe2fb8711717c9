"""A child that runs the pipeline on one drawn module after another, with the jobs in its own process.

It is a separate process because an artifact may crash the process that loads it. It serves many cases because each of
the nine jobs of a case would otherwise need a fork and its imports.
"""

from __future__ import annotations

import json
import pickle
import shutil
import socket
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from exporter.bundle import layout
from exporter.core.errors import JobError
from exporter.runs import pipeline
from exporter.workers.children import Child
from fuzz import cases
from fuzz.inline import Inline

TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Judged:
    """The result of a case: no rows if eager itself could not be judged.

    `untrue` lists what is wrong with the rows, and `unnamed` the refusals without a known cause.
    """

    rows: dict[str, str] = field(default_factory=dict)
    untrue: tuple[str, ...] = ()
    unnamed: tuple[str, ...] = ()


def serve(channel: socket.socket) -> None:
    """Answer each line, `[file, targets, folder]`, with its result; if the folder is a bundle, judge that."""
    warnings.simplefilter("ignore")
    pipeline.Zygote = Inline  # type: ignore[misc,assignment]
    with channel.makefile("r", encoding="utf-8") as requests:
        for line in requests:
            file, names, folder = json.loads(line)
            with Inline():
                judged = _judge(cases.Case(Path(file)), names, Path(folder))
            channel.sendall(pickle.dumps(("judged", judged)).hex().encode() + b"\n")


def _judge(case: cases.Case, names: str, folder: Path) -> Judged:
    if folder.is_dir():
        return _judge_bundle(case, folder)
    if not case.sound():
        return Judged()
    cases.run(case, names, folder)
    return _judge_bundle(case, folder)


def _judge_bundle(case: cases.Case, folder: Path) -> Judged:
    manifest = layout.read_manifest(folder)
    rows = {row.name: row.status for row in manifest.variants}
    return Judged(rows, tuple(cases.untrue(case, manifest, folder)), tuple(cases.unnamed(manifest)))


class Worker:
    """The parent's side. `spawn` starts `fuzz.worker:serve`; `run` does a run with a process for each job."""

    def __init__(self, spawn: Callable[[], Child], run: Callable[[cases.Case, str, Path], object]) -> None:
        self._spawn, self._run = spawn, run
        self._child: Child | None = None

    def judge(self, file: Path, names: str, folder: Path) -> Judged:
        """Run and judge one case. A case that crashes the child is run again, with a process for each job."""
        try:
            return self._ask(file, names, folder)
        except JobError:
            shutil.rmtree(folder, ignore_errors=True)
            self._run(cases.Case(file), names, folder)
            return self._ask(file, names, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _ask(self, file: Path, names: str, folder: Path) -> Judged:
        if self._child is None:
            self._child = self._spawn()
        self._child.say(json.dumps([str(file), names, str(folder)]))
        try:
            judged: Judged = self._child.expect("judged", TIMEOUT_S)
        except BaseException:
            self.close()
            raise
        return judged

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.kill()
            self._child = None
