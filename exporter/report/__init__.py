"""Render reports: the manifest alone as a table, JSON or Markdown, or with every timing sample as HTML."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from exporter.core.errors import UsageError
from exporter.core.json_codec import to_json
from exporter.core.records import Manifest


def render(manifest: Manifest, form: str, place: Path | None = None) -> str:
    """Render the manifest as a table, json or md, with a newline at the end."""
    if form == "json":
        return to_json(manifest) + "\n"
    if form == "md":
        from exporter.report import markdown

        return markdown.render(manifest)
    from exporter.report import console

    return console.render(manifest, place)


def render_all(found: Sequence[tuple[Manifest, Path]], form: str) -> str:
    """Render bundles, given as manifests and places. html is one page; tables and md follow one another.

    Raises UsageError for the json of several bundles, because json prints one manifest.
    """
    if form == "html":
        with _quiet("matplotlib"):  # where its folder cannot be made, it makes a temporary one, and says so at length
            from exporter.report import html

            return html.render(found)
    if form == "json" and len(found) > 1:
        raise UsageError("json prints one manifest, of one bundle", "give one BUNDLE at a time")
    return "".join(render(manifest, form, place) for manifest, place in found)


@contextlib.contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Let a library log only errors within the context."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
