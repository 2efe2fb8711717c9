"""Write the result of a release as JUnit XML, with a suite for each model and a case for each step and gate."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from junitparser import Failure, JUnitXml, TestCase, TestSuite

from exporter.core import filesystem
from exporter.core.errors import UsageError
from exporter.release.run import Row

_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML 1.0, 2.2


def write(rows: Sequence[Row], path: Path) -> None:
    """Write the file. Raises UsageError if it cannot be written."""
    report = JUnitXml("exporter release")
    for model, found in groupby(sorted(rows, key=_model), _model):
        suite = TestSuite(model)
        suite.add_testcases([case for row in found for case in _cases(row)])
        report.add_testsuite(suite)
    report.update_statistics()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with filesystem.replacing(path) as file:
            file.write(report.tostring())
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", "choose another --junit") from error


def _model(row: Row) -> str:
    return row.step.name.partition("/")[0]


def _cases(row: Row) -> list[TestCase]:
    failed = "\n".join(filter(None, (row.reason, row.remedy, row.reproduce)))
    cases = [_case("export and parity", row, failed)]
    cases[0].time = round(row.seconds, 3)
    return cases + [_case(one.gate, row, "" if one.passed else one.text) for one in row.checks]


def _case(name: str, row: Row, failure: str) -> TestCase:
    failure = _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", failure)
    case = TestCase(name, row.step.name)
    if failure:
        case.result = [Failure(failure.partition("\n")[0])]
        case.result[0].text = failure
    return case
