"""Reports: the manifest, and nothing else, as a table, JSON or Markdown."""

from __future__ import annotations

from pathlib import Path

from exporter.records import Manifest, to_json


def render(manifest: Manifest, form: str, place: Path | None = None) -> str:
    """The manifest as a table, json or md, with a newline at the end."""
    if form == "json":
        return to_json(manifest) + "\n"
    if form == "md":
        from exporter.report import markdown

        return markdown.render(manifest)
    from exporter.report import console

    return console.render(manifest, place)
