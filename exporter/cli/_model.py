"""Options shared by the commands that take a MODEL: its name, weights, sizes and device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from exporter.cli import _options
from exporter.core.errors import UsageError
from exporter.core.limits import LARGEST_SIZE
from exporter.core.settings import ModelSettings, SessionSettings, SourceSettings
from exporter.core.size_range import Range

if TYPE_CHECKING:
    from exporter.model.recipes import Source
    from exporter.workers.messages import Job

GivenSizes = dict[str, tuple[int, ...]]


class ModelName(click.ParamType[str]):
    """A recipe's name; shell completion offers the installed recipes."""

    name = "model"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return installed recipes, or files."""
        from exporter.model import recipes

        found = [CompletionItem(name) for name in recipes.available() if name.startswith(incomplete)]
        return found or [CompletionItem(incomplete, type="file")]


def _list(text: str) -> tuple[int, ...]:
    """Parse `1,8,32` to sizes without duplicates; return nothing if it is not such a list."""
    parts = text.split(",")
    return tuple(dict.fromkeys(map(_size, parts))) if all(map(str.isdigit, parts)) else ()


def _size(digits: str) -> int:
    """Return the number that the digits make. Raises BadParameter if no tensor can have such a size."""
    if len(digits.lstrip("0")) > len(str(LARGEST_SIZE)) or int(digits) > LARGEST_SIZE:
        raise click.BadParameter(f"{digits} is too large; a size is 1 to {LARGEST_SIZE}")
    return int(digits)


def read_batch(ctx: click.Context, param: click.Parameter, given: str | None) -> tuple[int, ...]:
    """Return the sizes of --batch; empty if it was not given."""
    sizes = _list(given) if given is not None else (1,)
    if not sizes or min(sizes) < 1:
        raise click.BadParameter(f"{given!r} is not N or N,N,..., for example 1,8,32")
    return sizes if given is not None else ()


def read_sizes(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> GivenSizes:
    """Return the last sizes and the last range of each name; a range, with its step, is under `NAME..`."""
    sizes: GivenSizes = {}
    for item in given:
        name, _, value = item.partition("=")
        low, dots, rest = value.partition("..")
        high, _, step = rest.partition("..")
        if param.name == "specialize":
            sizes[name] = tuple(sorted(_list(value)))
            if len(sizes[name]) < 2 or sizes[name][0] < 1:
                raise click.BadParameter(f"{item!r} is not NAME=N,N,..., for example batch=1,8,32")
        elif not dots and _list(value):
            sizes[name] = _list(value)
        elif not dots or not all(map(str.isdigit, (low, high, step or "1"))) or rest.endswith(".."):
            known = "NAME=N, NAME=N,N,..., NAME=MIN..MAX or NAME=MIN..MAX..STEP"
            raise click.BadParameter(f"{item!r} is not {known}, for example sequence=128")
        else:
            sizes[f"{name}.."] = _bounds(item, _size(low), _size(high), _size(step or "1"))
    return sizes


def _bounds(item: str, low: int, high: int, step: int) -> tuple[int, int, int]:
    """Return the bounds and the step. Raises BadParameter if they allow no size."""
    if not 1 <= low <= high:
        raise click.BadParameter(f"{item!r} is an empty range; a size is at least 1")
    if step < 1 or high // step * step < low:
        raise click.BadParameter(f"{item!r} is an empty range; no multiple of {step} lies in {low} to {high}")
    return low, high, step


model_options = _options.together(
    click.argument("model", type=ModelName()),
    click.option("--device", metavar="cpu|cuda[:N]", help="Where to run.  [default: cuda if available, else cpu]"),
    click.option(
        "--batch",
        callback=read_batch,
        metavar="N[,N,...]",
        help="Batch size of the example, and others to time; short for --size batch=N,N,...",
    ),
    click.option(
        "--size",
        "sizes",
        multiple=True,
        callback=read_sizes,
        metavar="NAME=N[,N,...]|MIN..MAX[..STEP]",
        help="A size that the recipe's inputs() takes: the example's (sequence=128), several to time, the example's "
        "first (sequence=16,128), or the range that the artifacts promise (sequence=1..512), optionally in steps "
        "(height=32..512..16); may be repeated.",
    ),
    _options.of(ModelSettings, "dynamic", "weights", "seed"),
    _options.of(SourceSettings),
    _options.of(SessionSettings, "ops_libs"),
)


def given_sizes(options: dict[str, Any]) -> GivenSizes:
    """Return the sizes of --size and --batch. Raises UsageError if both give another batch."""
    sizes: GivenSizes = options["sizes"]
    if not options["batch"]:
        return sizes
    if (size := sizes.get("batch", options["batch"])) != options["batch"]:
        one, other = (",".join(map(str, given)) for given in (options["batch"], size))
        raise UsageError(f"--batch {one} and --size batch={other} contradict each other", "give one of them")
    return sizes | {"batch": options["batch"]}


def single_sizes(given: GivenSizes) -> dict[str, int]:
    """Return the example's sizes."""
    return {name: sizes[0] for name, sizes in given.items() if not name.endswith("..")}


def sweep(given: GivenSizes) -> GivenSizes:
    """Return the names that are timed at several sizes."""
    return {name: sizes for name, sizes in given.items() if not name.endswith("..") and len(sizes) > 1}


def ranges(given: GivenSizes) -> dict[str, Range]:
    """Return the ranges."""
    found = {name[:-2]: bounds for name, bounds in given.items() if name.endswith("..")}
    return {name: Range(low, high).within(low, high, step) for name, (low, high, step) in found.items()}


def choose_device(asked: str | None) -> str:
    """Return the requested device, or the best available. Raises UsageError if this machine lacks it."""
    from exporter.core import environment

    if asked is None:
        return "cuda" if environment.gpus() and "+cpu" not in (environment.version("torch") or "") else "cpu"
    environment.require_device(asked)
    kind, _, index = asked.partition(":")
    if kind == "cuda" and int(index or 0) >= len(environment.gpus()):
        raise UsageError(
            f"there is no GPU {asked!r} here: nvidia-smi shows {len(environment.gpus())} that CUDA can use",
            "choose --device cpu, or check CUDA_VISIBLE_DEVICES",
        )
    return asked


def choose_source(model: str, options: dict[str, Any]) -> Source:
    """Return the source of the model, inputs and weights. Raises UsageError for options that contradict each other."""
    from exporter.model import recipes

    about = SourceSettings(**_options.given(SourceSettings, options))
    return recipes.resolve(model, about, options["weights"])


def model_settings(options: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of ModelSettings from the command line."""
    sizes = given_sizes(options)
    return _options.given(ModelSettings, options) | {
        "sizes": single_sizes(sizes),
        "sweep": sweep(sizes),
        "ranges": ranges(sizes),
    }


def untimed_job(command: str, model: str, device: str | None, work: Path, given: dict[str, Any]) -> Job:
    """Return the job of a command that times nothing. Raises UsageError if a size has several values."""
    from exporter import targets
    from exporter.core import environment
    from exporter.workers.messages import Job

    source = choose_source(model, given)
    if sweep(given_sizes(given)):
        raise UsageError(f"{command} does not measure time, so each size takes one value", "give one of each")
    options = targets.Options(
        device=choose_device(device), threads=environment.usable_cpus(), ops_libs=given["ops_libs"]
    )
    return Job(source.label, source, work, options, **model_settings(given))
