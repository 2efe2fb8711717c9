"""A bundle that is checked and timed again, as its listener hears of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter import checks, recheck
from exporter.errors import JobError
from exporter.listener import Listener
from exporter.records import VariantRecord
from exporter.session.client import Session


class Heard(Listener):
    def __init__(self) -> None:
        self.records: list[VariantRecord] = []

    def done(self, record: VariantRecord) -> None:
        self.records.append(record)


def crashes() -> Session:
    raise JobError("the session was ended by SIGSEGV")


def test_a_variant_that_fails_in_one_language_is_done_once(
    bundle: Path, lent_zygote: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When what its other session gave is known."""
    monkeypatch.setenv("EXPORTER_RUN", "/nowhere/exporter-run")
    openers = checks.openers

    def openers_of_both(*args: object) -> Iterator[tuple[str, checks.Opener]]:
        yield from openers(*args)  # type: ignore[arg-type]
        yield "native", crashes

    monkeypatch.setattr(checks, "openers", openers_of_both)
    heard = Heard()
    manifest = recheck.run(bundle, recheck.How(threads=1, timeout=120, time_budget=0.1), heard)
    assert [(r.name, r.status) for r in heard.records] == [(v.name, "failed") for v in manifest.variants]
    assert all("python" in r.timings for r in heard.records)
