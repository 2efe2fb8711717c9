"""The interface for following the progress of a run."""

from __future__ import annotations

from exporter.core.records import VariantRecord


class Listener:
    """Receives progress events; this base class ignores them."""

    def stage(self, variant: str, stage: str) -> None:
        """Called when a variant enters a stage."""

    def done(self, record: VariantRecord) -> None:
        """Called when a variant has passed or failed."""
