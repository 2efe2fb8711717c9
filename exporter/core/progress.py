"""Who hears of a run's progress."""

from __future__ import annotations

from exporter.core.records import VariantRecord


class Listener:
    """Hears of progress; this one ignores it."""

    def stage(self, variant: str, stage: str) -> None:
        """A variant has come to a stage."""

    def done(self, record: VariantRecord) -> None:
        """A variant has passed or failed."""
