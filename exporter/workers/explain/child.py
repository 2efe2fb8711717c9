"""What runs in the child: one section after the other, each told as soon as it is found."""

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
    """Load the model, find its contract, and run the sections; a section that raises has its error as its finding."""
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
    except Exception as error:  # torch raises whatever it meets; that is what the section has to say
        traceback.print_exc()
        return [failure(source_lines.own(error) or source_lines.summary(error), name)]
    return findings
