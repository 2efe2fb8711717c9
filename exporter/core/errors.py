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


class ExporterError(Exception):
    """The root: a cause (`str(error)`) and a remedy."""

    exit_code = 1

    def __init__(self, cause: str, remedy: str = "") -> None:
        super().__init__(cause)
        self.remedy = remedy

    def __reduce__(self) -> tuple[type[ExporterError], tuple[str, ...]]:
        return type(self), (str(self), self.remedy)


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


class JobError(ExporterError):
    """A child process that did not give a result.

    `log` is the tail of what the child printed, its traceback included. `signal` names the one that ended it, if any.
    """

    def __init__(self, cause: str, remedy: str = "", log: str = "", signal: str = "") -> None:
        super().__init__(cause, remedy)
        self.log, self.signal = log, signal

    def __reduce__(self) -> tuple[type[ExporterError], tuple[str, ...]]:
        return type(self), (str(self), self.remedy, self.log, self.signal)
