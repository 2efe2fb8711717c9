"""Everything that exporter raises on purpose.

    ExporterError               exit code 1
    ├── UsageError              exit code 2: what the user asked for cannot be done as asked
    │   ├── RecipeError         the recipe does not import, has no inputs(), gives no tensors
    │   └── BundleError         the output directory is locked, foreign, unwritable or full
    ├── ContractError           inputs that do not fit an artifact's contract
    ├── ArtifactError           an artifact or golden is missing, altered, cut short or of another kind; exit code 2
    │   └── AlteredError        a bundle is not what was published, or not signed as it should be; exit code 1
    ├── MissingDependency       a distribution or a tool that a target needs is not there
    ├── ExportError             the model cannot take this route
    └── JobError                a child process failed, hung, was killed or crashed

Each message names the cause; `remedy` says what to do about it. The command line shows both, and a traceback only
with -v. Whatever else escapes is our bug, and is shown as one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Blame:
    """A known cause, by its name in `exporter.core.causes`, with the words that fill its sentence."""

    cause: str
    words: dict[str, str] = field(default_factory=dict)


class ExporterError(Exception):
    """The root: a cause (`str(error)`), a remedy, and the known cause where whoever raises it knows."""

    exit_code = 1

    def __init__(self, cause: str, remedy: str = "", blame: Blame | None = None) -> None:
        super().__init__(cause)
        self.remedy, self.blame = remedy, blame

    def __reduce__(self) -> tuple[type[ExporterError], tuple[Any, ...]]:
        return type(self), (str(self), self.remedy, self.blame)


class UsageError(ExporterError):
    """What was asked for cannot be done as asked."""

    exit_code = 2


class RecipeError(UsageError):
    """A recipe that cannot be used."""


class BundleError(UsageError):
    """An output directory, or a bundle in it, that cannot be used."""


class ContractError(ExporterError):
    """Inputs that do not fit the contract."""


class ArtifactError(ExporterError):
    """A file that is missing, altered, cut short or not what it says it is."""

    exit_code = 2


class AlteredError(ArtifactError):
    """A bundle that is not what was published."""

    exit_code = 1


class MissingDependency(ExporterError):
    """A distribution or tool that is not installed."""

    exit_code = 2


class ExportError(ExporterError):
    """A model that cannot take the route it was sent."""


class BothFailed(ExportError):
    """A model that neither of a target's two exporters takes; `older` is what the second one, torch's older, raised."""

    def __init__(self, cause: str, remedy: str, blame: Blame | None, older: ExporterError) -> None:
        super().__init__(cause, remedy, blame)
        self.older = older

    def __reduce__(self) -> tuple[type[ExporterError], tuple[Any, ...]]:
        return type(self), (str(self), self.remedy, self.blame, self.older)

    @classmethod
    def of(cls, first: ExporterError, older: ExporterError) -> BothFailed:
        """What to raise for what the two raised."""
        return cls(f"{first}; torch's older exporter: {older}", first.remedy, first.blame, older)


class JobError(ExporterError):
    """A child process that did not give a result.

    `log` is the tail of what the child printed, its traceback included. `signal` names the one that ended it, if any.
    """

    def __init__(
        self, cause: str, remedy: str = "", log: str = "", signal: str = "", blame: Blame | None = None
    ) -> None:
        super().__init__(cause, remedy, blame)
        self.log, self.signal = log, signal

    def __reduce__(self) -> tuple[type[ExporterError], tuple[Any, ...]]:
        return type(self), (str(self), self.remedy, self.log, self.signal, self.blame)
