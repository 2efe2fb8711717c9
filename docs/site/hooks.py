"""MkDocs hooks: add pages from outside docs/ and a reference of the C++ headers to the site."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
# Files outside docs/, and their paths on the site.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "cpp/README.md": "cpp.md",
    "benchmarks/README.md": "benchmarks.md",
}
SCHEMAS = {
    "exporter/core/manifest.schema.json": "schemas/manifest.json",
    "exporter/release/schema.json": "schemas/release.json",
}
RESULTS = "benchmarks/results/"
HEADERS = "cpp-headers.md"
_LINK = re.compile(r"(?<!`)\[([^\]\n]*)\]\(([^)\s]+)\)")


def on_files(files: Any, config: Any) -> Any:
    """Add pages, schemas, published results and the header reference to the files of the site."""

    def add(place: str, content: str | bytes) -> None:
        files.append(File.generated(config, place, content=content))

    for source, place in PAGES.items():
        add(place, linked((ROOT / source).read_text(encoding="utf-8"), source, place))
    for source, place in SCHEMAS.items():
        add(place, (ROOT / source).read_bytes())
    for file in sorted((ROOT / RESULTS).rglob("*")):
        if file.suffix in (".md", ".svg", ".png"):
            source = file.relative_to(ROOT).as_posix()
            place = site_place(source)
            content = file.read_bytes()
            add(place, linked(content.decode(), source, place) if file.suffix == ".md" else content)
    add(HEADERS, headers())
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite the page's links to files outside docs/ as links to their pages on the site."""
    place = page.file.src_uri
    return markdown if page.file.generated_by else linked(markdown, f"docs/{place}", place)


def site_place(source: str) -> str:
    """Return the path on the site of a file of the repository; "" if the site lacks it."""
    if source.startswith("docs/"):
        return source.removeprefix("docs/")
    if source.startswith(RESULTS):
        return source.removeprefix("benchmarks/")
    return {**PAGES, **SCHEMAS}.get(source, "")


def linked(markdown: str, source: str, place: str) -> str:
    """Rewrite the links in `markdown`, the text of `source`, for its page at `place` on the site.

    Links to files that the site lacks become plain text.
    """

    def to(match: re.Match[str]) -> str:
        text, target = match[1], match[2]
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        path, hash_, anchor = target.partition("#")
        found = site_place(posixpath.normpath(posixpath.join(posixpath.dirname(source), path)))
        if not found:
            return text
        return f"[{text}]({posixpath.relpath(found, posixpath.dirname(place) or '.')}{hash_}{anchor})"

    return _LINK.sub(to, markdown)


def headers() -> str:
    """Return a page with the text of every public header."""
    parts = ["# C++ headers\n", "`#include <exporter/exporter.h>` includes all of them.\n"]
    for file in sorted((ROOT / "cpp/include/exporter").glob("*.h")):
        parts.append(f"## {file.name}\n\n```cpp\n{file.read_text(encoding='utf-8').strip()}\n```\n")
    return "\n".join(parts)
