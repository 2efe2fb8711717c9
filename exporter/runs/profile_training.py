"""Profile a training step of a bundle's model: eager, and with the model or the loss compiled.

Every form has a session of its own. Each computes the loss and the gradients that eager computes before it is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from exporter.core.errors import ExporterError, UsageError
from exporter.core.profile_records import Profile, Steps
from exporter.evidence import attribution
from exporter.runs import profile_bundle
from exporter.runs.profile_bundle import PYTHON, RUNS, Asked, Profiling, Running
from exporter.workers.profile import EAGER_STEP, FORMS, Trained
from exporter.workers.session.client import Session

RANDOM = (
    "the model draws random numbers: compiled forms were compared with those that eager draws, and timed with those "
    "that inductor draws"
)


def run(place: Path, asked: Asked, begun: Callable[[str], None]) -> tuple[Profile, dict[str, Steps]]:
    """Profile forms of the training step: eager always, and those named, or all of FORMS if none is.

    Raises UsageError if the recipe has no loss, if the model keeps state or trains nothing, if there is no form of that
    name or if the recipe changed; AlteredError if a file of the bundle differs from the published one.
    """
    if unknown := [name for name in asked.names if name not in FORMS]:
        raise UsageError(f"there is no training step {unknown[0]}", f"choose from {', '.join(FORMS)}")
    with profile_bundle.opened(place, asked, begun) as current:
        contract = current.manifest.contract
        if contract is not None and contract.state is not None:
            raise UsageError(
                "the model keeps state from call to call, and a training step has no state to begin with",
                "profile it without --train",
            )
        return _execute(current, [name for name in FORMS if name in asked.names or not asked.names])


def _execute(current: Profiling, forms: Sequence[str]) -> tuple[Profile, dict[str, Steps]]:
    current.begun("load model")
    arguments = {"job": current.job, "golden": current.golden, "expected": current.folder / "expected.pt"}
    function = "exporter.workers.profile.training:need"
    needed: Trained = current.zygote.run("model", function, arguments, current.log("model"), current.asked.timeout)
    running = []
    for form in dict.fromkeys((EAGER_STEP, *forms)):
        current.begun(f"open {form}")
        try:
            session = _open(current, form, arguments)
            running.append(Running(form, PYTHON, current.job.options.precision, session, _record(session)))
        except ExporterError as error:
            current.fail(form, PYTHON, error)
    steps, series = current.measured(running)
    model = attribution.Model(needed.eager, (), needed.peaks)
    found = current.profile(running, steps, series, model, EAGER_STEP)
    notes = needed.notes + ((RANDOM,) if needed.random else ())
    variants = tuple(replace(one, notes=one.notes + notes) if not one.reason else one for one in found.variants)
    return replace(found, variants=variants, train=True), {name: model.resolved(one) for name, one in steps.items()}


def _open(current: Profiling, form: str, arguments: dict[str, object]) -> Session:
    cache = current.folder / "cache"  # of compiled C++; the forms share kernels
    cache.mkdir(exist_ok=True)
    job = replace(current.job, options=replace(current.job.options, cache=str(cache)))
    function = "exporter.workers.profile.training:serve"
    return current.start(current.child(form, function, {**arguments, "job": job, "form": form}))


def _record(session: Session) -> Callable[[], Steps]:
    return lambda: session.profile(RUNS)
