"""The child's side: load the model from its source or from a changed copy, and run torch.export."""

from __future__ import annotations

import inspect
import os
import socket
import sys
import traceback
from collections.abc import Iterator, Mapping

import torch

from exporter.core import causes, contract, probing, source_lines
from exporter.core.contract_records import Contract
from exporter.core.errors import ExporterError, ExportError
from exporter.evidence import narrowing
from exporter.model import capture, rounded_sizes
from exporter.model.tensors import Tensors
from exporter.workers import keeping, loading
from exporter.workers.loading import LoadedModel
from exporter.workers.messages import Job
from exporter.workers.repair import overlay
from exporter.workers.repair.records import Attempt, Frame, Obstacle


def attempt(channel: socket.socket, job: Job, texts: Mapping[str, bytes]) -> Attempt:
    """Load the model with these texts in place of its files, and export it. Raises its error if nothing was changed."""
    overlay.install(texts)
    try:
        loaded, found = loaded_with_contract(job)
    except ExporterError as error:
        if not texts:
            raise
        return Attempt(_obstacle(error), {}, None)
    files = tuple(_files(loaded.module))
    try:
        made = captured(job, loaded, found)
        _require_saved(made.program, job)
    except ExportError as error:
        traceback.print_exc()
        return Attempt(_obstacle(error), loaded.base, found, files=files)
    function = contract.as_function(found)
    narrowed = narrowing.find(
        made, loaded.module, _inputs(job, loaded, found), loaded.base, function, job.options.device
    )
    limits = narrowing.limits(made, narrowed, loaded.base)
    of_graph = tuple(one for one in narrowed if one.of == "graph")
    fixed = tuple(one for one in limits if one.rule == "fixed")
    return Attempt(None, loaded.base, found, of_graph, fixed, files)


def loaded_with_contract(job: Job) -> tuple[LoadedModel, Contract]:
    """Return the model and its contract."""
    loaded = loading.load_model(job)
    return loaded, keeping.find(job, loaded)


def captured(job: Job, loaded: LoadedModel, found: Contract) -> capture.Captured:
    """Run torch.export as `exporter export` does, but reject checks of values, so that a repair can keep them.

    Raises ExportError, which names the obstacle.
    """
    sizes = probing.capture_sizes(loaded.base, loaded.symbols)
    example, function = _inputs(job, loaded, found)(sizes), contract.as_function(found)
    return capture.capture(loaded.module, example, function, checks_pass=False)


def _require_saved(program: torch.export.ExportedProgram, job: Job) -> None:
    """Raise ExportError if torch.export cannot save a program as the target `export` does."""
    rounded_sizes.make_storable(program)
    file = job.work / "tried.pt2"
    try:
        torch.export.save(program, file)
    except Exception as error:  # its serializer does not support every node of a graph
        raise ExportError(
            f"torch.export.save: {source_lines.summary(error)}", blame=source_lines.blame(error)
        ) from error
    finally:
        file.unlink(missing_ok=True)


class _inputs:
    """Makes the inputs at given sizes, on the job's device."""

    def __init__(self, job: Job, loaded: LoadedModel, found: Contract) -> None:
        self.job, self.loaded, self.found = job, loaded, found

    def __call__(self, sizes: dict[str, int]) -> Tensors:
        return tuple(t.to(self.job.options.device) for t in self.loaded.arguments(self.found, sizes, 0))


def _obstacle(error: ExporterError) -> Obstacle:
    """Describe an error with its cause and the frames in the user's code."""
    text = str(error)
    cause = causes.of(error, "export")
    message = "\n".join(str(one) for one in _chain(error))
    shown = causes.shorten(source_lines.without(text))
    said = f"{cause.sentence}: {shown}" if cause else shown
    remedy = error.remedy or (cause.remedy if cause else "")
    frames = next((found for one in reversed(_chain(error)) if (found := tuple(_frames(one)))), ())
    return Obstacle(said, message, cause.name if cause else "", source_lines.place(text), remedy, frames)


def _chain(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__
    return found


def _frames(error: BaseException) -> Iterator[Frame]:
    """Yield the frames of an error in the user's code, the outermost first."""
    for frame in traceback.extract_tb(error.__traceback__):
        if source_lines.of_library(f"{frame.filename}:{frame.lineno}"):
            continue
        line, end, first, last = frame.lineno, frame.end_lineno, frame.colno, frame.end_colno
        if None not in (line, end, first, last):
            yield Frame(os.path.realpath(frame.filename), line or 0, first or 0, end or 0, last or 0)


def _files(module: torch.nn.Module) -> Iterator[str]:
    """Yield the files that define the classes of a model, except those of torch and exporter."""
    seen: dict[str, None] = {}
    for part in module.modules():
        file = getattr(sys.modules.get(type(part).__module__), "__file__", None) or ""
        if file.endswith(".py") and not source_lines.of_library(f"{file}:1"):
            seen[os.path.realpath(inspect.getsourcefile(type(part)) or file)] = None
    yield from seen
