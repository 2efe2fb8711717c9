"""What commands that take a MODEL share: its name, its weights, its sizes, its device, and the options for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from exporter.cli import _options
from exporter.core.errors import UsageError
from exporter.core.settings import ModelSettings, SessionSettings, SourceSettings
from exporter.core.size_range import Range

if TYPE_CHECKING:
    from exporter.model.recipes import Source

GivenSizes = dict[str, tuple[int, ...]]


class ModelName(click.ParamType[str]):
    """A recipe's name, completed from what is installed."""

    name = "model"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Installed recipes, or files."""
        from exporter.model import recipes

        found = [CompletionItem(name) for name in recipes.available() if name.startswith(incomplete)]
        return found or [CompletionItem(incomplete, type="file")]


def _list(text: str) -> tuple[int, ...]:
    """`1,8,32` as sizes, each once; nothing where it is no such list."""
    parts = text.split(",")
    return tuple(dict.fromkeys(map(int, parts))) if all(map(str.isdigit, parts)) else ()


def read_batch(ctx: click.Context, param: click.Parameter, given: str | None) -> tuple[int, ...]:
    """The sizes of --batch; none where it was not given."""
    sizes = _list(given) if given is not None else (1,)
    if not sizes or min(sizes) < 1:
        raise click.BadParameter(f"{given!r} is not N or N,N,..., for example 1,8,32")
    return sizes if given is not None else ()


def read_sizes(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> GivenSizes:
    """The last sizes and the last range of each name: a range, with its step, under `NAME..`."""
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
            raise click.BadParameter(f"{item!r} is not {known}, as sequence=128")
        elif not 1 <= int(low) <= int(high):
            raise click.BadParameter(f"{item!r} is an empty range; a size is 1 at least")
        elif int(step or 1) < 1 or int(high) // int(step or 1) * int(step or 1) < int(low):
            raise click.BadParameter(f"{item!r} is an empty range; no multiple of {step} lies in {low} to {high}")
        else:
            sizes[f"{name}.."] = (int(low), int(high), int(step or 1))
    return sizes


model_options = _options.together(
    click.argument("model", type=ModelName()),
    click.option(
        "--device", metavar="cpu|cuda[:N]", help="Where to run.  [default: cuda where there is one, else cpu]"
    ),
    click.option(
        "--batch",
        callback=read_batch,
        metavar="N[,N,...]",
        help="Batch size of the example, and others to be timed too; the same as --size batch=N,N,...",
    ),
    click.option(
        "--size",
        "sizes",
        multiple=True,
        callback=read_sizes,
        metavar="NAME=N[,N,...]|MIN..MAX[..STEP]",
        help="A size that the recipe's inputs() takes: of the example, as sequence=128; with others to be timed too, "
        "as sequence=16,128; or the range that the artifacts promise, as sequence=1..512, with a step that sizes are "
        "multiples of as height=32..512..16; may be repeated.",
    ),
    _options.of(ModelSettings, "dynamic", "weights", "seed"),
    _options.of(SourceSettings),
    _options.of(SessionSettings, "ops_libs"),
)


def given_sizes(options: dict[str, Any]) -> GivenSizes:
    """What --size and --batch say together."""
    sizes: GivenSizes = options["sizes"]
    return sizes | ({"batch": options["batch"]} if options["batch"] else {})


def single_sizes(given: GivenSizes) -> dict[str, int]:
    """The example's sizes among them."""
    return {name: sizes[0] for name, sizes in given.items() if not name.endswith("..")}


def sweep(given: GivenSizes) -> GivenSizes:
    """What is timed at more sizes than one."""
    return {name: sizes for name, sizes in given.items() if not name.endswith("..") and len(sizes) > 1}


def ranges(given: GivenSizes) -> dict[str, Range]:
    """The ranges among them."""
    found = {name[:-2]: bounds for name, bounds in given.items() if name.endswith("..")}
    return {name: Range(low, high).within(low, high, step) for name, (low, high, step) in found.items()}


def choose_device(asked: str | None) -> str:
    """The device asked for, or the best there is. UsageError for one that is not here."""
    from exporter.core import environment

    if asked is None:
        return "cuda" if environment.gpus() and "+cpu" not in (environment.version("torch") or "") else "cpu"
    kind, _, index = asked.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdigit()) or (kind == "cpu" and index):
        raise UsageError(f"there is no device {asked!r}", "choose cpu, cuda or cuda:N")
    if kind == "cuda" and int(index or 0) >= len(environment.gpus()):
        raise UsageError(
            f"there is no GPU {asked!r} here: nvidia-smi shows {len(environment.gpus())} that CUDA may use",
            "choose --device cpu, or look at CUDA_VISIBLE_DEVICES",
        )
    return asked


def choose_source(model: str, options: dict[str, Any]) -> Source:
    """Where the model, its inputs and its weights come from. UsageError for options that contradict each other."""
    from exporter.model import recipes

    about = SourceSettings(**_options.given(SourceSettings, options))
    return recipes.resolve(model, about, options["weights"])


def model_settings(options: dict[str, Any]) -> dict[str, Any]:
    """The fields of ModelSettings that the command line gives."""
    sizes = given_sizes(options)
    return _options.given(ModelSettings, options) | {
        "sizes": single_sizes(sizes),
        "sweep": sweep(sizes),
        "ranges": ranges(sizes),
    }
