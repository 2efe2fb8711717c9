"""The user's metric of a variant, held against its bounds. Pure functions."""

from __future__ import annotations

from dataclasses import replace

from exporter.core.records import EAGER, MetricRecord, VariantRecord

NOT_AGAIN = "the metric was not computed again, for that needs the recipe"


def hold(record: VariantRecord, metric: MetricRecord) -> VariantRecord:
    """The record, failed where it passed and its metric does not keep a bound."""
    problem = broken(record.metric, metric)
    if record.status == "failed" or record.name == EAGER or not problem:
        return record
    return replace(record, status="failed", stage="metric", reason=problem, remedy="ship another variant or precision")


def broken(value: float | None, metric: MetricRecord) -> str:
    """The bound that a metric does not keep, in words; "" where it keeps all. What was not computed keeps none."""
    eager = f"eager's is {metric.eager:.4g}"
    if metric.least is not None and (value is None or value < metric.least):
        return f"the metric is {_said(value)}, the least is {metric.least:g}; {eager}"
    if metric.most_loss is not None and (value is None or metric.eager - value > metric.most_loss):
        lost = "" if value is None else f", {metric.eager - value:.4g} less"
        return f"the metric is {_said(value)}; {eager}{lost}, and {metric.most_loss:g} may be lost"
    return ""


def _said(value: float | None) -> str:
    return "not known" if value is None else f"{value:.4g}"
