"""The exceptions that exporter raises on purpose.

    ExporterError               exit code 1
    ├── UsageError              exit code 2: the request cannot be carried out as given
    │   ├── RecipeError         the recipe cannot be imported, has no inputs() or returns no tensors
    │   └── BundleError         the output directory is locked, not a bundle, not writable or full
    ├── ContractError           the inputs violate an artifact's contract
    ├── ArtifactError           exit code 2: an artifact or golden is missing, altered, truncated or not valid
    │   └── AlteredError        exit code 1: a bundle differs from its records, or lacks the required signature
    ├── MissingDependency       exit code 2: a distribution or tool that a target needs is not installed
    ├── ExportError             the target cannot export the model
    └── JobError                a child process failed, hung, was killed or crashed

Each message names the cause; `remedy` says what to do about it. The command line shows both, and the traceback only
with -v. Any other exception that escapes is a bug in exporter and is reported as one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Blame:
    """The name of a known cause in `exporter.core.causes`, and the words for the placeholders in its sentence."""

    cause: str
    words: dict[str, str] = field(default_factory=dict)


class ExporterError(Exception):
    """The base class: a cause (`str(error)`), a remedy, and the known cause if the code that raises it knows one."""

    exit_code = 1

    def __init__(self, cause: str, remedy: str = "", blame: Blame | None = None) -> None:
        super().__init__(cause)
        self.remedy, self.blame = remedy, blame

    def __reduce__(self) -> tuple[type[ExporterError], tuple[Any, ...]]:
        return type(self), (str(self), self.remedy, self.blame)


class UsageError(ExporterError):
    """The request cannot be carried out as given."""

    exit_code = 2


class RecipeError(UsageError):
    """The recipe cannot be used."""


class BundleError(UsageError):
    """The output directory, or a bundle in it, cannot be used."""


class ContractError(ExporterError):
    """The inputs violate the contract."""


class ArtifactError(ExporterError):
    """A file is missing, altered, truncated or not of the expected kind."""

    exit_code = 2


class AlteredError(ArtifactError):
    """A bundle differs from its records, or lacks the required signature."""

    exit_code = 1


class MissingDependency(ExporterError):
    """A distribution or tool is not installed."""

    exit_code = 2


class ExportError(ExporterError):
    """The target cannot export the model."""


class BothFailed(ExportError):
    """Both exporters of a target failed; `older` is the error of the second one, torch's older exporter."""

    def __init__(self, cause: str, remedy: str, blame: Blame | None, older: ExporterError) -> None:
        super().__init__(cause, remedy, blame)
        self.older = older

    def __reduce__(self) -> tuple[type[ExporterError], tuple[Any, ...]]:
        return type(self), (str(self), self.remedy, self.blame, self.older)

    @classmethod
    def of(cls, first: ExporterError, older: ExporterError) -> BothFailed:
        """Combine the errors of the two exporters."""
        return cls(f"{first}; torch's older exporter: {older}", first.remedy, first.blame, older)


class JobError(ExporterError):
    """A child process ended without a result.

    `log` is the end of the child's output, with its traceback. `signal` names the signal that ended it, if any.
    """

    def __init__(
        self, cause: str, remedy: str = "", log: str = "", signal: str = "", blame: Blame | None = None
    ) -> None:
        super().__init__(cause, remedy, blame)
        self.log, self.signal = log, signal

    def __reduce__(self) -> tuple[type[ExporterError], tuple[Any, ...]]:
        return type(self), (str(self), self.remedy, self.log, self.signal, self.blame)
