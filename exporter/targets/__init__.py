"""Targets: each is one route to an artifact, in one file, found by its name.

A target's module imports torch only inside its functions, so that the command line can list it quickly. Other packages
add targets through the entry-point group `exporter.targets` (name = module); they cannot replace a built-in target.

This file is long because the Protocols that a target implements and the lookup of targets are read together.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast, runtime_checkable

from exporter.core import environment, precisions, source_lines
from exporter.core.contract import Narrowing
from exporter.core.contract_records import FP32, Build, Contract
from exporter.core.errors import MissingDependency, UsageError
from exporter.core.parity_records import SizeLimit, Warned
from exporter.core.profile_records import Steps
from exporter.core.settings import BuildSettings, SessionSettings
from exporter.core.size_range import Sizes
from exporter.targets import _facts, _plugins
from exporter.targets._facts import GB as GB
from exporter.targets._facts import Candidate as Candidate
from exporter.targets._facts import Facts as Facts
from exporter.targets._facts import Need as Need
from exporter.targets._facts import Part as Part
from exporter.targets._facts import TritonBackend as TritonBackend

if TYPE_CHECKING:
    from exporter.model.capture import Program
    from exporter.model.tensors import Run, Tensors


class Variant(NamedTuple):
    """A target with its settings: `compile:max-autotune@bf16`, `trace@int8+fp32:head`."""

    target: str
    setting: str = ""
    precision: str = FP32

    @property
    def name(self) -> str:
        """The name as the user writes it."""
        setting = f":{self.setting}" if self.setting else ""
        return f"{self.target}{setting}" + (f"@{self.precision}" if self.precision != FP32 else "")

    @property
    def artifact(self) -> str:
        """The file's name in the bundle."""
        stem, dot, suffix = get(self.target).artifact.rpartition(".")
        setting = f"-{self.setting}" if self.setting else ""  # of a plug-in's target: only those built ahead of time
        return f"{stem}{setting}{precisions.in_file_name(self.precision)}{dot}{suffix}"

    @property
    def base(self) -> str:
        """The precision without the layers in float32."""
        return precisions.base(self.precision)


@dataclass(frozen=True, kw_only=True)
class Options(BuildSettings, SessionSettings):
    """Settings of one variant: the user's options and those that the run adds."""

    threads: int = 1
    variant: str = ""
    precision: str = FP32
    device: str = "cpu"
    scratch: str = ""  # directory for temporary files, removed with the run
    niceness: int = 0  # increment of the job's niceness, as for nice(2)
    cache: str = ""  # directory for compiler caches; "" uses the one that all runs share
    profiled: bool = False  # whether compiled kernels report to torch.profiler, and what they compute is kept
    huge_pages: bool = False  # whether exporter-run copies a package's weights into huge pages
    judged_as: str = ""  # the precision with the layers in its name, as the golden has it; "" is `precision`

    def computing_in(self, precision: str) -> Options:
        """Return these options for a precision, whose name may have layers to keep in float32."""
        layers = dict.fromkeys((*self.keep_float, *precisions.kept(precision)))
        return replace(self, precision=precisions.base(precision), keep_float=tuple(layers), judged_as=precision)

    def of(self, variant: Variant) -> Options:
        """Return these options for a variant."""
        return replace(self.computing_in(variant.precision), variant=variant.setting)

    @property
    def memory_limit(self) -> int:
        """Limit on the private memory of one job in bytes; 0 means no limit."""
        return round((self.memory_limit_gb or 0) * 1e9)


@dataclass(frozen=True)
class Exported:
    """The result of an export: notes for the row, warnings with their source lines, and sizes that it fixed."""

    notes: tuple[str, ...] = ()
    warnings: tuple[Warned, ...] = ()
    companions: tuple[str, ...] = ()  # names of the artifact's companion files, in the same directory
    ops: tuple[str, ...] = ()  # namespaces of the custom operators that it calls, as in its contract
    build: Build | None = None  # how its machine code was built, as in its contract
    entries: tuple[Sizes, ...] = ()  # sizes with a model of their own, as in its contract
    whole: bool = False  # whether it accepts every input that the model accepts, even if the exported program does not
    limits: tuple[SizeLimit, ...] = ()


def _as_returned(outputs: Tensors, inputs: Tensors) -> Tensors:
    return outputs


@dataclass(frozen=True)
class Loaded:
    """A loaded artifact.

    `run` maps input tensors on the session's device to output tensors. `provider` returns the name of the provider that
    actually runs it, and `notes` what it has reported so far. `reset` restores the initial state, if the artifact
    carries one. `takes` is the number of input tensors that the file itself declares; None if it declares none.
    `profile` returns the steps of the typical call among several; None: those that torch.profiler sees. With
    `own_threads`, calls use none of torch's threads. `own` maps the outputs and inputs of a call to outputs that are
    the caller's, not tensors of the artifact.
    """

    run: Run
    provider: Callable[[], str] = str
    notes: Callable[[], tuple[str, ...]] = tuple
    reset: Callable[[], object] = tuple
    takes: int | None = None
    profile: Callable[[Tensors, int], Steps] | None = None
    own_threads: bool = False
    own: Callable[[Tensors, Tensors], Tensors] = _as_returned


class Target(Protocol):
    """The required attributes of a target's module. The optional ones are in `Facts`."""

    artifact: str  # the file's name in the bundle
    variants: tuple[str, ...]  # what may follow the colon; "" is the default, KEY=NAME accepts any name
    precisions: tuple[str, ...]  # what may follow the @; fp32 is the default
    requires: tuple[str, ...]  # distributions, with alternatives separated by |
    native: bool  # whether exporter-run can run the artifact
    needs_program: bool  # whether it needs program.exported

    def export(self, program: Program, path: Path, options: Options) -> Exported:
        """Write the artifact to `path`, with its contract inside. Raise ExportError if that fails."""
        ...

    def load(self, path: Path, options: Options) -> Loaded:
        """Load the artifact without the model's code. Raise ArtifactError if it cannot be loaded."""
        ...

    def read_contract(self, path: Path) -> Contract:
        """Return the contract that the artifact carries. Raise ArtifactError if it carries none."""
        ...


@runtime_checkable
class LiveTarget(Protocol):
    """A target with variants that write no artifact: they are compiled in the process that runs them."""

    live_variants: tuple[str, ...]

    def live(self, program: Program, options: Options) -> Loaded:
        """Compile the program and return it, ready to run."""
        ...


def names() -> list[str]:
    """Return the names of all targets, built-in and installed. Those of other packages may be unusable."""
    return sorted(_ours() | _plugins.names())


def _ours() -> set[str]:
    return {info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_")}


def get(name: str) -> Target:
    """Return the target of this name. Raise UsageError if it does not exist or another package's target is unusable."""
    if name in _ours():
        return _built_in(name)
    if name in _plugins.names():
        return cast(Target, _plugins.load(name, {_built_in(other).artifact for other in _ours()}))
    close = _also_called(name.lower()) or difflib.get_close_matches(name, names(), n=2, cutoff=0.6)
    hint = f"did you mean {' or '.join(close)}?" if close else "`exporter targets` lists them"
    raise UsageError(f"there is no target {name!r}", hint)


def _built_in(name: str) -> Target:
    module = importlib.import_module(f"{__name__}.{name}")
    source_lines.add_libraries(_facts.of(module).libraries)
    return cast(Target, module)


def _also_called(name: str) -> list[str]:
    """Return the targets that have this name as an alias, cheapest first."""
    found = [target for target in usable() if name in facts(target).also_called]
    return sorted(found, key=lambda target: facts(target).cost)


def facts(name: str) -> Facts:
    """Return the target's optional attributes; the defaults if it is not installed here, as for a foreign bundle."""
    try:
        return _facts.of(get(name))
    except UsageError:
        return Facts()


def shipped_by(name: str) -> str:
    """Return the package that ships the target, with its version; "" for built-in targets."""
    return "" if name in _ours() else _plugins.shipped_by(name)


def usable() -> dict[str, Target]:
    """Return the targets that can be used, by name, built-in ones first."""
    found = {name: _built_in(name) for name in sorted(_ours())}
    for name in sorted(_plugins.names() - found.keys()):
        with contextlib.suppress(UsageError):
            found[name] = get(name)
    return found


def refused() -> list[UsageError]:
    """Return why targets of other packages are refused: they are unusable or have the name of a built-in target."""
    found = _plugins.clashes(_ours())
    for name in sorted(_plugins.names() - _ours()):
        try:
            get(name)
        except UsageError as error:
            found.append(error)
    return found


def distributions(used: Iterable[str] = (), optional: bool = False) -> tuple[str, ...]:
    """Return the distributions that the built-in targets and those in `used` require, with all alternatives.

    Include the distributions that ship the targets in `used` and, if `optional`, those that targets use only if they
    are installed. Unknown names in `used` are ignored.
    """
    found: dict[str, None] = {}
    for name in (*sorted(_ours()), *used):
        with contextlib.suppress(UsageError):
            target = get(name)
            found |= dict.fromkeys(one for requirement in target.requires for one in requirement.split("|"))
            found |= dict.fromkeys(_facts.of(target).optional if optional else ())
            found |= dict.fromkeys(() if name in _ours() else _plugins.distributions(name))
    return tuple(name for name in found if name not in environment.DISTRIBUTIONS)


def parse(text: str, usual: Sequence[str] = (FP32,)) -> list[Variant]:
    """Parse a list of variants such as `trace@int8,compile:default`.

    An item without an @ stands for one variant in each precision in `usual` that its target supports. Raise UsageError
    for an unknown target, setting or precision.
    """
    found: dict[Variant, None] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        named, at, precision = item.partition("@")
        name, _, setting = named.partition(":")
        target = get(name)
        if not _has(target.variants, setting):
            close = difflib.get_close_matches(setting, target.variants, n=2, cutoff=0.7)
            known = [f"{name}:{v}" if v else name for v in close or target.variants]
            hint = f"did you mean {' or '.join(known)}?" if close else f"it has {', '.join(known)}"
            raise UsageError(f"target {name} has no variant {setting!r}", hint)
        known_precisions = _precisions(Variant(name, setting))
        if at and precisions.base(precision) not in known_precisions:
            unknown = precisions.base(precision)
            raise UsageError(f"target {named} has no precision {unknown!r}", f"it has {', '.join(known_precisions)}")
        if at:
            precisions.require(precision)
        chosen = [precision] if at else [p for p in usual if precisions.base(p) in known_precisions]
        found |= dict.fromkeys(Variant(name, setting, p) for p in chosen)
    if not found and (missing := left_out(text, usual)):
        raise UsageError("; ".join(missing), "give another --precision, or other targets")
    if not found:
        raise UsageError("no target was given", f"choose from {', '.join(names())}")
    return list(found)


def _precisions(variant: Variant) -> tuple[str, ...]:
    """Return the precisions of a target, or of its variants that are compiled just in time."""
    live = facts(variant.target).live_precisions if is_live(variant) else None
    return get(variant.target).precisions if live is None else live


def _has(known: Sequence[str], setting: str) -> bool:
    """Return whether `known` contains the setting, or its KEY=NAME."""
    key, equals, name = setting.partition("=")
    return setting in known or (f"{key}{equals}NAME" in known and re.fullmatch(r"[\w.-]+", name) is not None)


def left_out(text: str, asked_for: Sequence[str]) -> tuple[str, ...]:
    """Describe what `parse` skips: precisions that a target lacks, and targets with the name of a built-in one."""
    asked = {re.split("[:@]", item.strip())[0] for item in text.split(",")}
    found = [str(error) for error in _plugins.clashes(asked & _ours())]
    unnamed = (item.strip() for item in text.split(",") if item.strip() and "@" not in item)
    for item in dict.fromkeys(unnamed):
        name, _, setting = item.partition(":")
        known = _precisions(Variant(name, setting))
        if missing := [p for p in asked_for if precisions.base(p) not in known]:
            found.append(f"{item} does not support {' or '.join(missing)}; it has {', '.join(known)}")
    return tuple(found)


def parse_precisions(text: str) -> tuple[str, ...]:
    """Parse a list of precisions such as `fp32,bf16`. Raise UsageError for an unknown one."""
    found = tuple(dict.fromkeys(filter(None, (part.strip() for part in text.split(",")))))
    for precision in found:
        precisions.require(precision)
    return found or (FP32,)


def is_live(variant: Variant) -> bool:
    """Return whether the variant is compiled in the process that runs it, and writes no artifact."""
    target = get(variant.target)
    return isinstance(target, LiveTarget) and _has(target.live_variants, variant.setting)


def is_native(name: str) -> bool:
    """Return whether exporter-run can run the target's artifacts; False if the target is not installed."""
    try:
        return get(name).native
    except UsageError:
        return False


def is_portable(variant: Variant) -> bool:
    """Return whether the variant follows --portable, that is, can be made for other CPUs than this one."""
    known = facts(variant.target)
    fits = known.portable_precisions is None or variant.base in known.portable_precisions
    return known.portable and fits and not is_live(variant)


def live(name: str) -> LiveTarget:
    """Return the target as one with live variants. Raise TypeError if it has none."""
    target = get(name)
    if not isinstance(target, LiveTarget):
        raise TypeError(f"{name} has no live variants")
    return target


def preloads(variants: Iterable[Variant]) -> tuple[str, ...]:
    """Return the groups of what the exports to these variants import or call first, cheapest exports last."""
    exported = sorted((v for v in variants if not is_live(v)), key=lambda v: facts(v.target).cost, reverse=True)
    return tuple(dict.fromkeys(",".join(found) for v in exported if (found := facts(v.target).preloads)))


def native_suffixes() -> list[str]:
    """Return the suffixes of artifacts that exporter-run can run."""
    return sorted({Path(target.artifact).suffix for target in usable().values() if target.native})


def narrowings(target: Target, found: Iterable[Narrowing]) -> tuple[Narrowing, ...]:
    """Return the narrowings that apply to the target's artifacts; all of them if it does not declare `assumes`."""
    assumed = _facts.of(target).assumes
    return tuple(one for one in found if one.of in assumed)


def require(target: Target) -> None:
    """Raise MissingDependency if a required distribution is not installed."""
    for requirement in target.requires:
        choices = requirement.split("|")
        if not any(environment.version(choice) for choice in choices):
            raise MissingDependency(f"{' or '.join(choices)} is not installed", f"pip install {choices[0]}")
