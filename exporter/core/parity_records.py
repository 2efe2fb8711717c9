"""The records of parity: the golden's cases, the tolerances, and the results."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from exporter.core.json_schema import described
from exporter.core.size_range import Range as Range

Verdict = Literal["exact", "rounding", "drift", "quantized", "FAIL"]


VERDICTS: tuple[Verdict, ...] = ("exact", "rounding", "drift", "quantized", "FAIL")


@dataclass(frozen=True)
class Tolerance:
    """The limits on an output's error: `rtol` and `atol` as in torch.allclose, and `k` on the RMSE relative to eager's.

    With `min_cosine`, an output with at least this cosine similarity, and a relative error that fits it, passes too, as
    `quantized`. So do a few elements near zero if their error is small for what the output typically is.
    """

    rtol: float = described("Relative, as in torch.allclose.", minimum=0)
    atol: float = described("Absolute, as in torch.allclose.", minimum=0)
    k: float = described("Limit on the RMSE, in units of eager's own RMSE.", minimum=0)
    min_cosine: float | None = described(
        "Cosine similarity that also passes, as quantized; null for none.", None, minimum=0, maximum=1
    )


@dataclass(frozen=True)
class CaseRecord:
    """One case of the golden.

    `values` names the special values (`zeros`, `large`, ...) that replace random ones. `sample` is the index of one of
    the recipe's own samples. `step` is the index of a call in a sequence, if the model keeps state. Both are None
    otherwise.
    """

    name: str = described("Its name: its sizes and the kind of its values.")
    seed: int = described("The seed of the random values.", 0, minimum=0)
    sizes: dict[str, int] = described("Sizes by symbol.", dict, minimum=0)
    values: str = described(
        "The special values that replace random ones: `zeros`, `large`, ...; empty for random values.", ""
    )
    sample: int | None = described("Index of the recipe's own sample, from 0; null if it is not one.", None, minimum=0)
    step: int | None = described(
        "Index of the call in a sequence, from 0; null if the model keeps no state.", None, minimum=0
    )

    def __hash__(self) -> int:
        """Hash the name and the seed, which are unique in a golden."""
        return hash((self.name, self.seed))

    def __str__(self) -> str:
        """Return `batch=2 zeros` or `batch=2 seed 1`."""
        return f"{self.name} seed {self.seed}" if self.seed else self.name

    @classmethod
    def of_text(cls, text: str) -> CaseRecord:
        """Parse the text form of a case in older manifests and goldens."""
        name, _, seed = text.partition(" seed ")
        sizes = {symbol: int(size) for symbol, size in _SIZE.findall(name)}
        step = _STEP.search(name)
        return cls(name, int(seed or 0), sizes, step=int(step[1]) - 1 if step else None)


_SIZE = re.compile(r"(\S+)=(\d+)")


_STEP = re.compile(r" step (\d+)$")


@dataclass(frozen=True)
class FixedSize:
    """A symbol for which an artifact accepts a single size, although its contract allows a range."""

    symbol: str = described("The symbol.")
    size: int = described("The size.", minimum=0)

    def __str__(self) -> str:
        """Return `batch is fixed at 2`."""
        return f"{self.symbol} is fixed at {self.size}"


@dataclass(frozen=True)
class SizeLimit:
    """How an exporter (`by`) limited a size that is dynamic in the contract, and the model's line that causes it.

    `of` is an expression of the `symbols`. Depending on `rule`, it is `fixed` at the number `to`, accepted only in
    `steps` with the formula `to` in n, or allowed only in the `range` `to` but checked beyond it.
    """

    of: str = described("The size, as an expression of the symbols.")
    rule: Literal["fixed", "steps", "range"] = described(
        "Whether it is fixed at a number, accepted only in steps, or allowed only in a range but checked beyond it."
    )
    to: str = described("The number, the formula of the steps in n, or the range.")
    symbols: tuple[str, ...] = described("The symbols that the size depends on.")
    place: str = described("The line of the model that causes the limit, file:line; empty if unknown.", "")
    by: str = described("The exporter.", "torch.export")

    @property
    def follows(self) -> bool:
        """Whether a size derived from a symbol was fixed, not the symbol itself."""
        return self.rule == "fixed" and self.of not in self.symbols

    def __str__(self) -> str:
        """Describe the limit, with the place in brackets."""
        where = f" ({self.place})" if self.place else ""
        if self.rule == "fixed":
            return f"{self.by} fixed {self.of} at {self.to}{where}"
        if self.rule == "steps":
            return f"{self.by} accepts {self.of} only as {self.to}{where}"
        return f"{self.by} allows {self.of} only {self.to}; checked beyond that{where}"


@dataclass(frozen=True)
class Warned:
    """A warning of an exporter, with the source line that it named.

    `unrecorded` means that the line changes a tensor in a way that neither a trace nor a graph records.
    """

    message: str = described("The text of the warning.")
    place: str = described("The source line that it named, file:line; empty if it named none.", "")
    unrecorded: bool = described(
        "Whether the line changes a tensor in a way that neither a trace nor a graph records.", False
    )

    def __str__(self) -> str:
        """Return `model.py:3: message`."""
        return f"{self.place}: {self.message}" if self.place else self.message

    @classmethod
    def of_text(cls, text: str) -> Warned:
        """Parse the text form of a warning in older manifests."""
        return cls(text)


@dataclass(frozen=True)
class CaseParity:
    """The parity of one output in one case and seed. If the case itself failed, `output` is empty."""

    case: str = described("The golden's case.")
    seed: int = described("Its seed.")
    output: str = described("The output; empty if the case itself failed.")
    verdict: Verdict = described("The verdict; drift passes by the RMSE alone, quantized by the cosine and the error.")
    max_abs: float | None = described("Largest absolute difference from the reference.", None, minimum=0)
    rmse_ratio: float | None = described("RMSE over eager's own RMSE, both against the reference.", None, minimum=0)
    cosine: float | None = described("Cosine similarity with the reference.", None, minimum=-1.000001, maximum=1.000001)


@dataclass(frozen=True)
class Parity:
    """The worst values over all outputs and cases, independently for each number; with `parts` in a session's record.

    `refused` counts further cases whose sizes the artifact does not promise and its contract refused. `unpropagated`
    describes where NaN or infinity is lost in the artifact but not in eager; None if that was not tested.
    """

    verdict: Verdict = described("The verdict; drift passes by the RMSE alone, quantized by the cosine and the error.")
    max_abs: float | None = described("Largest absolute difference from the reference.", minimum=0)
    max_rel: float | None = described("Largest difference relative to the reference.", minimum=0)
    rmse_ratio: float | None = described("RMSE over eager's own RMSE, both against the reference.", minimum=0)
    cosine: float | None = described(
        "Smallest cosine similarity with the reference.", minimum=-1.000001, maximum=1.000001
    )
    worst: str = described("Output, index, case and seed of the worst element.")
    reason: str = described("Why it failed; empty when it passed.", "")
    cases: int = described("How many cases were compared.", 0, minimum=0)
    parts: tuple[CaseParity, ...] = described(
        "Each output in each case, in the record of a session; otherwise empty.", ()
    )
    refused: int = described(
        "Number of further cases with sizes that the artifact does not promise, which its contract refused.",
        0,
        minimum=0,
    )
    unpropagated: tuple[str, ...] | None = described(
        "Where NaN or infinity is lost in the artifact but not in eager; null if not tested.", None
    )
    fixed: tuple[FixedSize, ...] = described("Sizes that turned out to be fixed in the artifact.", ())
