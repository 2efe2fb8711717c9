"""Measure the size of a bundle's HTML report, and how long headless Chromium takes to load and paint it."""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _process import verdict
from playwright.sync_api import Browser, sync_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PAINTED = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


def main() -> None:
    """Make the page and load it several times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundles", metavar="BUNDLE", type=Path, nargs="*", default=[Path("artifacts/bert")])
    parser.add_argument("--loads", type=int, default=10)
    options = parser.parse_args()
    report = [sys.executable, "-m", "exporter", "report", "--format", "html", *map(str, options.bundles)]
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        page = Path(folder, "report.html")
        page.write_bytes(subprocess.run(report, stdout=subprocess.PIPE, check=True).stdout)
        browser = driver.chromium.launch(executable_path=next(filter(None, map(shutil.which, BROWSERS)), None))
        seconds = [_load(browser, page) for _ in range(options.loads)]
        print(f"{options.loads} loads in Chromium {browser.version}, median {statistics.median(seconds):.3f} s")
        browser.close()
        verdict([("size of the page, MB", page.stat().st_size / 1e6, 1), ("slowest load, seconds", max(seconds), 1)])


def _load(browser: Browser, page: Path) -> float:
    """Return the seconds until a page is loaded and painted, with an empty cache."""
    view = browser.new_context().new_page()
    started = time.perf_counter()
    view.goto(page.as_uri())
    view.evaluate(PAINTED)
    seconds = time.perf_counter() - started
    view.context.close()
    return seconds


if __name__ == "__main__":
    main()
