"""Recipes: what exporter needs to know about a model.

`find` resolves a name without importing anything heavy; `load` imports it, in a child process. Recipes are code: they
run only when the user names them.

This file is long because finding and loading a recipe share the forms in which a user may name one.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import difflib
import importlib
import importlib.util
import inspect
import os
import pickle
import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from exporter.core import dimensions, source_lines
from exporter.core.dimensions import NamedDim
from exporter.core.errors import RecipeError, UsageError
from exporter.core.settings import SourceSettings
from exporter.core.size_range import Range
from exporter.model import custom_ops

if TYPE_CHECKING:
    import torch

SAVED = (".pt", ".pt2", ".pth", ".jit", ".ts", ".torchscript")  # usual suffixes of saved programs; others work too
BUILT_IN = "exporter_models"
OPTIONAL = ("samples", "metric", "loss")  # optional attributes of a recipe
ENTRY_POINTS = "exporter.models"
# What a module needs to define names that its code does not contain.
COMPUTED_NAMES = {
    *("*", "globals", "vars", "locals", "exec", "eval", "setattr", "modules", "__dict__", "__getattr__"),
    *("f_globals", "_getframe", "currentframe", "stack"),
}
HAS = "a recipe has load(weights), inputs(batch=1, …) and sizes"


class Recipe(Protocol):
    """The interface of a recipe, which is a module, a class or any object with these attributes.

    It may also have `samples()`, which returns an iterable of real inputs in the form of inputs(), and
    `metric(outputs, sample)`, which returns a number (higher is better) for a dict of outputs by name and an item of
    samples() (`exporter.evidence.samples`). `loss(outputs, inputs)` returns what a training step minimizes, a tensor
    with one value, for a dict of outputs by name and inputs in the form of inputs() (`exporter profile --train`).
    """

    sizes: Mapping[str, tuple[int, ...]]  # (min, max) or (min, max, step)

    def load(self, weights: str) -> torch.nn.Module:
        """Return the model in eval mode; `weights` is auto, pretrained or random."""
        ...

    def inputs(self, **sizes: int) -> Any:
        """Return example inputs at these sizes: a dict of tensors by name, a tuple, or a tensor."""
        ...


@dataclass(frozen=True)
class Source:
    """Where a recipe comes from.

    `kind` is name, file, memory or source, and `place` is then a module, a file path, the path of a pickle or the name
    of a source. `attribute` is the model's name in that place. `checkpoint` is a file of weights to load into the model
    after it is built.
    """

    kind: str
    place: str
    attribute: str = ""
    inputs_file: str = ""
    search_path: tuple[str, ...] = ()
    task: str = ""
    checkpoint: str = ""
    allow_partial: bool = False
    dims: tuple[NamedDim, ...] = ()  # dimensions of saved inputs that the user named
    leave_out: tuple[str, ...] = ()  # names of outputs to omit from every artifact
    name: str = ""  # name of an installed recipe; may differ from its module's name

    @property
    def label(self) -> str:
        """Return a short name that can serve as a folder name."""
        if self.name:
            return self.name
        if self.kind == "source":
            return Path(self.attribute).stem if self.place == "saved" else Path(self.attribute).resolve().name
        return self.attribute or self.place.rpartition(".")[2] if self.kind != "file" else self.attribute


def available() -> dict[str, str]:
    """Map the name of every installed recipe to its module: built-in ones and the entry-point group exporter.models."""
    from importlib.metadata import entry_points

    found = {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}
    package = importlib.import_module(BUILT_IN)
    return found | {info.name: f"{BUILT_IN}.{info.name}" for info in pkgutil.iter_modules(package.__path__)}


def sources() -> list[str]:
    """Return the prefixes that may precede the colon in a name such as `hf:bert`."""
    package = importlib.import_module("exporter.model.sources")
    found = (info.name for info in pkgutil.iter_modules(package.__path__))
    return sorted(name for name in found if name != "saved" and not name.startswith("_"))


def find(name: str, inputs_file: str = "", task: str = "") -> Source:
    """Resolve `name`: an installed recipe, `path/to/file.py:attribute`, `source:name`, or a saved program.

    Any file that is not Python counts as a saved program; its content determines the kind. Raises UsageError if nothing
    matches.
    """
    prefix, _, rest = name.partition(":")
    if rest and prefix in sources():
        return Source("source", prefix, rest, inputs_file, task=task)
    if task:
        raise UsageError(f"--task applies only to hf:ID models, not {name}", "remove --task")
    known = available()
    saved = Path(name)
    if name not in known and saved.suffix != ".py" and (saved.is_file() or saved.suffix in SAVED):
        if not saved.is_file():
            raise UsageError(f"there is no file {name}", "check the path")
        return Source("source", "saved", str(saved.resolve()), inputs_file)
    path, colon, attribute = name.rpartition(":")
    if name.removesuffix(":").endswith(".py"):
        raise UsageError(
            f"{name} names a file but not an object in it",
            f"write {name.removesuffix(':')}:NAME, where NAME is the recipe or a callable that returns the model",
        )
    if colon and path.endswith(".py"):
        if not Path(path).is_file():
            raise UsageError(f"there is no file {path}", "check the path")
        return Source("file", _utf8(Path(path).resolve()), attribute, inputs_file)
    if name not in known:
        close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        raise UsageError(
            f"there is no model {name!r}",
            f"{hint}`exporter models` lists them; your own file is path/to/file.py:NAME, a library's model one of "
            f"{', '.join(f'{source}:NAME' for source in sources())}",
        )
    module, _, attribute = known[name].partition(":")
    return Source("name", module, attribute or "", inputs_file, name=name)


def require_mentioned(source: Source) -> None:
    """Raise UsageError if the file of a recipe surely does not define its name. The file is read but not run."""
    if source.kind != "file":
        return
    try:
        tree = ast.parse(Path(source.place).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return  # importing it reports the error
    words = {
        word
        for node in ast.walk(tree)
        for key in ("id", "name", "asname", "attr", "arg", "value", "rest")
        if isinstance(word := getattr(node, key, None), str)
    }
    words |= {word.partition(".")[0] for word in words}  # `import a.b` defines a
    main = {id(part) for node in ast.walk(tree) if isinstance(node, ast.If) for part in ast.walk(node.test)}
    given = any(isinstance(n, ast.Name) and n.id == "__name__" and id(n) not in main for n in ast.walk(tree))
    if source.attribute not in words and not words & COMPUTED_NAMES and not given:
        names = [node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
        raise UsageError(f"{source.place} has no {source.attribute}", _instead(source.attribute, names))


def _instead(name: str, names: Sequence[str]) -> str:
    """Return which of the names that a file defines may be meant."""
    close = difflib.get_close_matches(name, names, n=3)
    return f"did you mean {' or '.join(close)}?" if close else _defines(names)


def _utf8(path: Path) -> str:
    """Return a path as text. Raises UsageError if it is not UTF-8: torch records the path of the model's code."""
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"the path of the recipe is not valid UTF-8: {os.fsencode(path)!r}",
            "rename the file or folder that has other bytes in its name, or copy it to another path",
        ) from error
    return str(path)


def resolve(name: str, how: SourceSettings, weights: str = "auto") -> Source:
    """Resolve `name` like `find` and apply the user's settings; files become absolute paths.

    Raises UsageError if settings contradict each other or the model.
    """
    how.require_consistent(weights)
    inputs_file = str(Path(how.inputs_file).resolve()) if how.inputs_file else ""
    return adjusted(find(name, inputs_file, how.task), how)


def adjusted(source: Source, how: SourceSettings) -> Source:
    """Return the source with the user's dimensions, checkpoint and omitted outputs."""
    # The checkpoint path is not resolved: the suffix of a link, not of its target, determines the format.
    return dataclasses.replace(
        with_dims(source, how.dims),
        leave_out=tuple(how.leave_out),
        checkpoint=str(Path(how.checkpoint).absolute()) if how.checkpoint else "",
        allow_partial=how.allow_partial,
    )


def asked_of(source: Source) -> SourceSettings:
    """Return the settings that the user gave for a source."""
    return SourceSettings(
        checkpoint=source.checkpoint,
        allow_partial=source.allow_partial,
        inputs_file=source.inputs_file,
        dims=tuple(map(str, source.dims)),
        leave_out=source.leave_out,
        task=source.task,
    )


def with_dims(source: Source, dims: Sequence[str]) -> Source:
    """Return the source with the user's named dimensions. Raises UsageError if its inputs are not saved inputs."""
    if dims and not (source.place == "saved" or source.inputs_file or source.kind == "memory"):
        raise UsageError(
            f"--dim does not apply to {source.label}: its inputs() names the sizes",
            "give --size NAME=MIN..MAX; --dim is for saved programs and --inputs",
        )
    return dataclasses.replace(source, dims=dimensions.parse_all(dims))


def load(source: Source) -> Recipe:
    """Import the recipe. Raises RecipeError if the import fails or the recipe lacks a required attribute."""
    if source.kind == "memory":
        sys.path.extend(entry for entry in source.search_path if entry not in sys.path)
        return _from_memory(Path(source.place))
    if source.kind == "source":
        recipe: Recipe = importlib.import_module(f"exporter.model.sources.{source.place}").recipe(
            source.attribute, source
        )
        return recipe if source.place == "saved" else _with_inputs(recipe, source)
    try:
        module = _import_file(Path(source.place)) if source.kind == "file" else importlib.import_module(source.place)
    except (Exception, SystemExit) as error:
        whose = f"{source.place}{_shipped_by(source)}"
        raise RecipeError(
            f"{whose} does not import: {type(error).__name__}: {error}",
            custom_ops.GIVE if custom_ops.is_missing(error) else "fix it, or install what it imports",
        ) from error
    if source.attribute and not hasattr(module, source.attribute):
        names = [n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__]
        raise RecipeError(f"{source.place} has no {source.attribute}", _instead(source.attribute, names))
    found = getattr(module, source.attribute) if source.attribute else module
    return _as_recipe(found, module, source)


def _defines(names: Sequence[str]) -> str:
    """Return what a file defines, from the names of its functions and classes."""
    return f"it has {', '.join(names[:8])}" if names else f"it defines no recipe; {HAS}"


def _shipped_by(source: Source) -> str:
    """Return ` of NAME VERSION` for the distribution that ships an installed recipe, or "" if there is none."""
    from importlib.metadata import entry_points

    found = (point.dist for point in entry_points(group=ENTRY_POINTS) if point.name == source.name)
    return next((f" of {dist.name} {dist.version}" for dist in found if dist), "")


def _import_file(path: Path) -> Any:
    # Keep the file's own module name so that its classes can be pickled, unless another module has that name.
    name = path.stem if importlib.util.find_spec(path.stem) is None else f"recipe_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise RecipeError(f"{path} cannot be imported", "give a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _as_recipe(found: Any, module: Any, source: Source) -> Recipe:
    if inspect.isclass(found) and hasattr(found, "load") and hasattr(found, "inputs"):
        try:
            found = found()
        except Exception as error:
            raise RecipeError(f"{source.attribute}() fails: {error}", "give an instance, or no arguments") from error
    if hasattr(found, "load") and hasattr(found, "inputs"):
        own: dict[str, Any] = {name: getattr(found, name, None) for name in OPTIONAL}
        recipe = found if hasattr(found, "sizes") else FunctionRecipe(found.load, found.inputs, **own)
        return _with_inputs(_checked(recipe), source)
    if source.attribute and callable(found) and not hasattr(found, "load"):
        inputs = (
            _saved_inputs(Path(source.inputs_file))
            if source.inputs_file
            else getattr(module, f"{source.attribute}_inputs", None)
        )
        if inputs is None:
            raise RecipeError(
                f"{source.attribute} returns a model, but its inputs are unknown",
                f"write {source.attribute}_inputs(batch=1, ...) beside it, or save a dict of tensors for --inputs",
            )
        sizes = None if source.inputs_file else getattr(module, f"{source.attribute}_sizes", None)
        own = {name: getattr(module, f"{source.attribute}_{name}", None) for name in OPTIONAL}
        _require_takes(found, source.attribute)
        return _checked(FunctionRecipe(lambda weights: found(), inputs, sizes, chooses_weights=False, **own))
    missing = "inputs()" if hasattr(found, "load") else "load() and inputs()"
    raise RecipeError(
        f"{source.attribute or source.place} has no {missing}",
        HAS,
    )


class FunctionRecipe:
    """A recipe made of functions.

    Without `sizes`, a `batch` parameter ranges from 1 to 64, or to its default if that is larger. `chooses_weights`
    says whether `load` uses its argument. `own` holds those of OPTIONAL that the user defines; the others are None.
    """

    def __init__(
        self,
        load: Callable[[str], Any],
        inputs: Callable[..., Any],
        sizes: Mapping[str, tuple[int, ...]] | None = None,
        chooses_weights: bool = True,
        **own: Callable[..., Any] | None,
    ) -> None:
        if unknown := own.keys() - set(OPTIONAL):
            raise TypeError(f"a recipe has no {min(unknown)}; it may have {', '.join(OPTIONAL)}")
        self.samples, self.metric, self.loss = (own.get(name) for name in ("samples", "metric", "loss"))
        self.load, self.inputs, self.chooses_weights = load, inputs, chooses_weights
        example = example_sizes(inputs).get("batch")
        defaults = {"batch": (1, max(64, example))} if example else {}
        self.sizes = defaults if sizes is None else sizes


def _require_takes(function: Callable[..., Any] | None, name: str, *arguments: str) -> None:
    """Raise RecipeError if a function of the user cannot be called with these arguments."""
    with contextlib.suppress(ValueError):  # some callables have no signature
        try:
            inspect.signature(function or (lambda *_: None)).bind(*arguments)
        except TypeError as error:
            written = f"{name}({', '.join(arguments)})"
            remedy = f"write def {written}"
            if inspect.ismethod(function):
                first = "cls" if inspect.isclass(function.__self__) else "self"
                remedy = f"write def {name}({', '.join((first, *arguments))}), or @staticmethod before def {written}"
            raise RecipeError(f"{name}() cannot be called as {written}: {error}", remedy) from error


def _checked(recipe: Recipe) -> Recipe:
    """Return the recipe. Raises RecipeError if its functions cannot take the arguments that exporter passes."""
    _require_takes(recipe.load, "load", "weights")
    _require_takes(getattr(recipe, "samples", None), "samples")
    _require_takes(getattr(recipe, "metric", None), "metric", "outputs", "sample")
    _require_takes(getattr(recipe, "loss", None), "loss", "outputs", "inputs")
    return recipe


def _with_inputs(recipe: Recipe, source: Source) -> Recipe:
    """Return the recipe, with the inputs of --inputs if given; every size is then fixed."""
    if not source.inputs_file:
        return recipe
    own: dict[str, Any] = {name: getattr(recipe, name, None) for name in OPTIONAL}
    return FunctionRecipe(recipe.load, _saved_inputs(Path(source.inputs_file)), {}, **own)


def _saved_inputs(path: Path) -> Callable[[], Any]:
    import torch

    from exporter.model import tensor_files

    try:
        if tensor_files.is_one(path):
            saved = tensor_files.read(path)[0]
        else:
            saved = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:
        refused = isinstance(error, pickle.UnpicklingError)  # torch's message suggests loading it unsafely
        cause = (
            "it was not written by torch.save, or holds more than tensors" if refused else source_lines.message(error)
        )
        remedy = "save a dict of tensors with safetensors.torch.save_file or torch.save"
        raise RecipeError(f"--inputs {path} cannot be read: {cause}", remedy) from error
    return lambda: saved


def _from_memory(path: Path) -> Recipe:
    """Return the recipe of a model that the parent process has just pickled into a private folder."""
    import torch

    try:
        model, own = torch.load(path, weights_only=False)
    except (AttributeError, ModuleNotFoundError) as error:
        raise RecipeError(
            f"the model cannot be sent to another process: {error}", "define its class in a module, not in the script"
        ) from error
    inputs, samples = own["inputs"], own["samples"]
    return FunctionRecipe(
        lambda weights: model,
        inputs if callable(inputs) else lambda: inputs,
        own["sizes"],
        samples=samples if samples is None or callable(samples) else lambda: samples,
        metric=own["metric"],
    )


def example_sizes(inputs: Callable[..., Any]) -> dict[str, int]:
    """Return the sizes that `inputs()` takes and their defaults. Raises RecipeError if a default is not an integer."""
    try:
        parameters = inspect.signature(inputs).parameters.values()
    except (TypeError, ValueError) as error:
        raise RecipeError("inputs is not a function", "write def inputs(batch=1, ...)") from error
    sizes = {}
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        if not isinstance(parameter.default, int) or isinstance(parameter.default, bool):
            raise RecipeError(
                f"inputs() has a parameter {parameter.name} without an integer default",
                f"write {parameter.name}=N with an example size",
            )
        sizes[parameter.name] = parameter.default
    return sizes


def ranges(recipe: Recipe) -> dict[str, Range]:
    """Return the recipe's `sizes`, validated. A number N means 1 to N; a third value is the step.

    A Python range of multiples of its step means the same.

    Raises RecipeError for an unknown size or an invalid range.
    """
    known = example_sizes(recipe.inputs)
    if not isinstance(recipe.sizes, Mapping):
        raise RecipeError(f"sizes is a {type(recipe.sizes).__name__}, not a dict", 'write {"batch": (min, max)}')
    result = {}
    for name, bounds in recipe.sizes.items():
        if name not in known:
            raise RecipeError(
                f"sizes names {name}, but inputs() takes {', '.join(known) or 'no sizes'}",
                "add that parameter to inputs(), or remove it from sizes",
            )
        result[name] = _range(name, bounds)
    return result


def _range(name: str, bounds: Any) -> Range:
    remedy = "write (min, max) or (min, max, step) with 1 <= min <= max"
    given = (1, bounds) if isinstance(bounds, int) else bounds
    if isinstance(bounds, range) and bounds:
        given = (bounds[0], bounds[-1], bounds.step if len(bounds) > 1 else 1)
        if given[2] < 1 or given[0] % given[2]:
            raise RecipeError(f"sizes gives {name} {bounds!r}, which are not the multiples of a step", remedy)
    if not isinstance(given, (tuple, list)) or [type(bound) for bound in given] not in ([int, int], [int, int, int]):
        raise RecipeError(f"sizes gives {name} {bounds!r}, which is not a range", remedy)
    low, high, *step = given
    if not 1 <= low <= high:
        raise RecipeError(f"sizes gives {name} the range {low} to {high}", remedy)
    try:
        return Range(low, high).within(low, high, *step)
    except ValueError as error:
        raise RecipeError(f"sizes gives {name} {bounds!r}: {error}", remedy) from error
