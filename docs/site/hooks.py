"""What MkDocs adds to the pages of docs/: pages that lie elsewhere in the repository, and the C++ headers."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
# Where what lies outside docs/ is on the site.
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
    """Add the pages, the schemas, the published results and the reference of the headers."""

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
    """The page with its links out of docs/ led to where their targets are on the site."""
    place = page.file.src_uri
    return markdown if page.file.generated_by else linked(markdown, f"docs/{place}", place)


def site_place(source: str) -> str:
    """Where a file of the repository is on the site; "" where it is not there."""
    if source.startswith("docs/"):
        return source.removeprefix("docs/")
    if source.startswith(RESULTS):
        return source.removeprefix("benchmarks/")
    return {**PAGES, **SCHEMAS}.get(source, "")


def linked(markdown: str, source: str, place: str) -> str:
    """Markdown of a file of the repository, for a page at `place`: what is not on the site is named without a link."""

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
    """The public headers, each with its comments."""
    parts = ["# C++ headers\n", "`#include <exporter/exporter.h>` includes them all.\n"]
    for file in sorted((ROOT / "cpp/include/exporter").glob("*.h")):
        parts.append(f"## {file.name}\n\n```cpp\n{file.read_text(encoding='utf-8').strip()}\n```\n")
    return "\n".join(parts)
