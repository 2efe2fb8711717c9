"""The child's side: run the sections in order and send each as soon as it is complete."""

from __future__ import annotations

import importlib
import socket
import traceback

from exporter import targets
from exporter.core import source_lines
from exporter.workers import keeping, loading
from exporter.workers.explain import Finding, Section, failure
from exporter.workers.explain.subject import Subject
from exporter.workers.forkserver import tell
from exporter.workers.messages import Job


def examine(channel: socket.socket, job: Job, sections: tuple[str, ...]) -> None:
    """Load the model, find its contract, and run the sections. If a section raises, the error is its finding."""
    loaded = loading.load_model(job)
    subject = Subject(job, loaded, keeping.find(job, loaded))
    tell(channel, "subject", (loaded.base, subject.contract))
    for name in sections:
        tell(channel, "section", Section(name, tuple(_findings(name, subject))))


def _findings(name: str, subject: Subject) -> list[Finding]:
    try:
        if explain := targets.facts(name).explain:
            return list(explain(subject))
        findings: list[Finding] = importlib.import_module(f"exporter.workers.explain.{name}").examine(subject)
    except Exception as error:  # torch may raise anything; the error is the finding
        traceback.print_exc()
        message = source_lines.own(error) or source_lines.summary(error)
        return [failure(error, name, message)]
    return findings
