"""Targets: one route to an artifact each, one file each, found by its name.

A target's module does not import torch until its functions run, so that the command line can list it. Third parties add
theirs through the entry-point group `exporter.targets` (name = module); a built-in target keeps its name.

This file is long because the Protocols that a target implements and the lookup of targets are read together.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast, runtime_checkable

from exporter.core import environment, source_lines
from exporter.core.contract import Narrowing
from exporter.core.contract_records import FP32, PRECISIONS, Build, Contract
from exporter.core.errors import MissingDependency, UsageError
from exporter.core.parity_records import SizeLimit, Warned
from exporter.core.settings import BuildSettings, SessionSettings
from exporter.targets import _facts, _plugins
from exporter.targets._facts import GB as GB
from exporter.targets._facts import Facts as Facts
from exporter.targets._facts import Need as Need
from exporter.targets._facts import Part as Part
from exporter.targets._facts import TritonBackend as TritonBackend

if TYPE_CHECKING:
    from exporter.model.capture import Program
    from exporter.model.tensors import Run


class Variant(NamedTuple):
    """A target with its settings: `compile:max-autotune@bf16`."""

    target: str
    setting: str = ""
    precision: str = FP32

    @property
    def name(self) -> str:
        """As the user writes it."""
        setting = f":{self.setting}" if self.setting else ""
        return f"{self.target}{setting}" + (f"@{self.precision}" if self.precision != FP32 else "")

    @property
    def artifact(self) -> str:
        """The file's name in the bundle."""
        stem, dot, suffix = get(self.target).artifact.rpartition(".")
        return f"{stem}@{self.precision}{dot}{suffix}" if self.precision != FP32 else f"{stem}{dot}{suffix}"


@dataclass(frozen=True, kw_only=True)
class Options(BuildSettings, SessionSettings):
    """Settings of one variant: what the user asked for, and what the run adds."""

    threads: int = 1
    variant: str = ""
    precision: str = FP32
    device: str = "cpu"
    scratch: str = ""  # directory for temporary files, removed with the run
    niceness: int = 0  # how far the job stands back for the others of its run, as nice(2) counts
    cache: str = ""  # directory for what compilers keep, instead of the one that all runs share

    @property
    def memory_limit(self) -> int:
        """Bytes of private memory that one job may use; 0 where there is no limit."""
        return round((self.memory_limit_gb or 0) * 1e9)


@dataclass(frozen=True)
class Exported:
    """What an export has to say: notes for the row, warnings with their source lines, and sizes that it fixed."""

    notes: tuple[str, ...] = ()
    warnings: tuple[Warned, ...] = ()
    companions: tuple[str, ...] = ()  # names of files beside the artifact that belong to it
    ops: tuple[str, ...] = ()  # namespaces of operators outside torch's own that it calls, as in its contract
    build: Build | None = None  # of the machine code in it, as in its contract
    whole: bool = False  # whether it takes all that the model takes, whatever the exported program does
    limits: tuple[SizeLimit, ...] = ()


@dataclass(frozen=True)
class Loaded:
    """A loaded artifact: tensors on the session's device in, tensors out; who really runs it, what it met so far.

    `reset` begins again from the initial state of an artifact that carries one. `takes` is how many tensors it takes
    by its own account, where it gives one.
    """

    run: Run
    provider: Callable[[], str] = str
    notes: Callable[[], tuple[str, ...]] = tuple
    reset: Callable[[], object] = tuple
    takes: int | None = None


class Target(Protocol):
    """What a target's module offers. `Facts` holds what it may declare beside."""

    artifact: str  # file name in the bundle
    variants: tuple[str, ...]  # what may follow the colon; "" is the default, KEY=NAME stands for any name
    precisions: tuple[str, ...]  # what may follow the @; fp32 is the default
    requires: tuple[str, ...]  # distributions, alternatives separated by |
    native: bool  # whether exporter-run takes the artifact
    needs_program: bool  # whether it starts from program.exported

    def export(self, program: Program, path: Path, options: Options) -> Exported:
        """Write the artifact with its contract inside."""
        ...

    def load(self, path: Path, options: Options) -> Loaded:
        """Load the artifact, without the model's code."""
        ...

    def read_contract(self, path: Path) -> Contract:
        """The contract that the artifact carries; ArtifactError when it carries none."""
        ...


@runtime_checkable
class LiveTarget(Protocol):
    """A target some of whose variants leave no artifact: they are compiled in the process that runs them."""

    live_variants: tuple[str, ...]

    def live(self, program: Program, options: Options) -> Loaded:
        """The program made ready to run."""
        ...


def names() -> list[str]:
    """All targets, ours and installed ones; one of another package may not be usable."""
    return sorted(_ours() | _plugins.names())


def _ours() -> set[str]:
    return {info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_")}


def get(name: str) -> Target:
    """The target of this name; UsageError when there is none, or another package's is not usable."""
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
    """Targets that go by another name too, the cheapest first."""
    found = [target for target in usable() if name in facts(target).also_called]
    return sorted(found, key=lambda target: facts(target).cost)


def facts(name: str) -> Facts:
    """What the target says of itself; the defaults for one that is not here, as in a bundle of another machine."""
    try:
        return _facts.of(get(name))
    except UsageError:
        return Facts()


def shipped_by(name: str) -> str:
    """The package that a target comes from, with its version; "" for ours."""
    return "" if name in _ours() else _plugins.shipped_by(name)


def usable() -> dict[str, Target]:
    """Targets that can be used, by name: ours first."""
    found = {name: _built_in(name) for name in sorted(_ours())}
    for name in sorted(_plugins.names() - found.keys()):
        with contextlib.suppress(UsageError):
            found[name] = get(name)
    return found


def refused() -> list[UsageError]:
    """Why targets of other packages cannot be used, or are not, for they have the name of one of ours."""
    found = _plugins.clashes(_ours())
    for name in sorted(_plugins.names() - _ours()):
        try:
            get(name)
        except UsageError as error:
            found.append(error)
    return found


def distributions(used: Iterable[str] = (), optional: bool = False) -> tuple[str, ...]:
    """What the built-in targets and those in `used` require, in all alternatives, and who ships the latter.

    With `optional`, what they use where it is installed too. Names that no target has are left out.
    """
    found: dict[str, None] = {}
    for name in (*sorted(_ours()), *used):
        with contextlib.suppress(UsageError):
            target = get(name)
            found |= dict.fromkeys(one for requirement in target.requires for one in requirement.split("|"))
            found |= dict.fromkeys(_facts.of(target).optional if optional else ())
            found |= dict.fromkeys(() if name in _ours() else _plugins.distributions(name))
    return tuple(name for name in found if name not in environment.DISTRIBUTIONS)


def parse(text: str, precisions: Sequence[str] = (FP32,)) -> list[Variant]:
    """`trace@int8,compile:default` as variants, each without an @ in all of `precisions` that its target has.

    UsageError for what does not exist.
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
        if at and precision not in target.precisions:
            raise UsageError(f"target {name} has no precision {precision!r}", f"it has {', '.join(target.precisions)}")
        chosen = [precision] if at else [p for p in precisions if p in target.precisions]
        found |= dict.fromkeys(Variant(name, setting, p) for p in chosen)
    if not found:
        raise UsageError("no target was given", f"choose from {', '.join(names())}")
    return list(found)


def _has(known: Sequence[str], setting: str) -> bool:
    """Whether the setting is among those known."""
    key, equals, name = setting.partition("=")
    return setting in known or (f"{key}{equals}NAME" in known and re.fullmatch(r"[\w.-]+", name) is not None)


def left_out(text: str, precisions: Sequence[str]) -> tuple[str, ...]:
    """What `parse` leaves out, in words: for want of a precision, or for it has the name of a built-in target."""
    asked = {re.split("[:@]", item.strip())[0] for item in text.split(",")}
    found = [str(error) for error in _plugins.clashes(asked & _ours())]
    unnamed = (item.strip() for item in text.split(",") if item.strip() and "@" not in item)
    for name in dict.fromkeys(item.partition(":")[0] for item in unnamed):
        if missing := [p for p in precisions if p not in get(name).precisions]:
            found.append(f"{name} is not made in {' or '.join(missing)}; it has {', '.join(get(name).precisions)}")
    return tuple(found)


def parse_precisions(text: str) -> tuple[str, ...]:
    """`fp32,bf16` as precisions; UsageError for what is none."""
    found = tuple(dict.fromkeys(filter(None, (part.strip() for part in text.split(",")))))
    for precision in found:
        if precision not in PRECISIONS:
            raise UsageError(f"there is no precision {precision!r}", f"choose from {', '.join(PRECISIONS)}")
    return found or (FP32,)


def is_live(variant: Variant) -> bool:
    """Whether the variant is compiled where it runs and leaves no artifact."""
    target = get(variant.target)
    return isinstance(target, LiveTarget) and _has(target.live_variants, variant.setting)


def is_native(name: str) -> bool:
    """Whether exporter-run takes the target's artifacts; not those of one that is not here."""
    try:
        return get(name).native
    except UsageError:
        return False


def is_portable(variant: Variant) -> bool:
    """Whether it may be made as portable machine code, as --portable asks."""
    return facts(variant.target).portable and not is_live(variant)


def live(name: str) -> LiveTarget:
    """The target as one with live variants; TypeError when it has none."""
    target = get(name)
    if not isinstance(target, LiveTarget):
        raise TypeError(f"{name} has no live variants")
    return target


def native_suffixes() -> list[str]:
    """Suffixes of artifacts that exporter-run takes."""
    return sorted({Path(target.artifact).suffix for target in usable().values() if target.native})


def narrowings(target: Target, found: Iterable[Narrowing]) -> tuple[Narrowing, ...]:
    """Those that hold for what this target makes; all, where it does not say which."""
    assumed = _facts.of(target).assumes
    return tuple(one for one in found if one.of in assumed)


def require(target: Target) -> None:
    """MissingDependency for a distribution that is not installed."""
    for requirement in target.requires:
        choices = requirement.split("|")
        if not any(environment.version(choice) for choice in choices):
            raise MissingDependency(f"{' or '.join(choices)} is not installed", f"pip install {choices[0]}")
