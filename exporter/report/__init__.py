"""Reports: the manifest, and nothing else, as a table, JSON or Markdown; with every sample, as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from exporter.core.errors import UsageError
from exporter.core.json_codec import to_json
from exporter.core.records import Manifest


def render(manifest: Manifest, form: str, place: Path | None = None) -> str:
    """The manifest as a table, json or md, with a newline at the end."""
    if form == "json":
        return to_json(manifest) + "\n"
    if form == "md":
        from exporter.report import markdown

        return markdown.render(manifest)
    from exporter.report import console

    return console.render(manifest, place)


def render_all(found: Sequence[tuple[Manifest, Path]], form: str) -> str:
    """Bundles, each with its place: html on one page, table and md one after the other.

    UsageError for the json of several: it is the manifest itself.
    """
    if form == "html":
        from exporter.report import html

        return html.render(found)
    if form == "json" and len(found) > 1:
        raise UsageError("json prints one manifest, of one bundle", "give one BUNDLE at a time")
    return "".join(render(manifest, form, place) for manifest, place in found)
