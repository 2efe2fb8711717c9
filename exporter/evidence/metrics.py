"""Checks the user's metric of a variant against its bounds. Pure functions."""

from __future__ import annotations

from dataclasses import replace

from exporter.core.records import EAGER, MetricRecord, VariantRecord

NOT_AGAIN = "the metric was not recomputed, because that needs the recipe"


def hold(record: VariantRecord, metric: MetricRecord) -> VariantRecord:
    """Return the record, marked as failed if it passed and its metric violates a bound."""
    problem = broken(record.metric, metric)
    if record.status == "failed" or record.name == EAGER or not problem:
        return record
    return replace(record, status="failed", stage="metric", reason=problem, remedy="ship another variant or precision")


def broken(value: float | None, metric: MetricRecord) -> str:
    """Describe the bound that a metric violates; "" if there is none. A metric of None violates any bound."""
    eager = f"eager's is {metric.eager:.4g}"
    if metric.least is not None and (value is None or value < metric.least):
        return f"the metric is {_said(value)}, the minimum is {metric.least:g}; {eager}"
    if metric.most_loss is not None and (value is None or metric.eager - value > metric.most_loss):
        lost = "" if value is None else f", a loss of {metric.eager - value:.4g}"
        return f"the metric is {_said(value)}; {eager}{lost}; the maximum loss is {metric.most_loss:g}"
    return ""


def _said(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4g}"
