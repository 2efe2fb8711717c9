"""The records of parity: the golden's cases, what outputs are held against, and what was found."""

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
    """`rtol` and `atol` as in torch.allclose; `k` bounds the RMSE against eager's own.

    With `min_cosine`, an output that is as near as this by its direction passes too, as `quantized`.
    """

    rtol: float = described("Relative, as in torch.allclose.", minimum=0)
    atol: float = described("Absolute, as in torch.allclose.", minimum=0)
    k: float = described("Bound on the RMSE, in units of eager's own.", minimum=0)
    min_cosine: float | None = described(
        "Cosine that passes too, as quantized; null where nothing but the above passes.", None, minimum=0, maximum=1
    )


@dataclass(frozen=True)
class CaseRecord:
    """One case of the golden.

    `sizes` are by symbol. `values` names what stands in the place of drawn values (`zeros`, `large`, ...). `sample`
    counts the recipe's own inputs from 0, and `step` the calls of a sequence where the model keeps state; else they are
    None.
    """

    name: str = described("What it is called: its sizes, and what its values are.")
    seed: int = described("The seed of the drawn values.", 0, minimum=0)
    sizes: dict[str, int] = described("Sizes by symbol.", dict, minimum=0)
    values: str = described(
        "What stands in the place of drawn values: `zeros`, `large`, ...; empty for drawn ones.", ""
    )
    sample: int | None = described("Which of the recipe's own samples it is, from 0; null for none.", None, minimum=0)
    step: int | None = described(
        "Which call of a sequence it is, from 0; null where the model keeps no state.", None, minimum=0
    )

    def __hash__(self) -> int:
        """By what it is called: no two cases of a golden share that."""
        return hash((self.name, self.seed))

    def __str__(self) -> str:
        """`batch=2 zeros`, or `batch=2 seed 1`."""
        return f"{self.name} seed {self.seed}" if self.seed else self.name

    @classmethod
    def of_text(cls, text: str) -> CaseRecord:
        """A case as manifests and goldens named it before they had fields for it."""
        name, _, seed = text.partition(" seed ")
        sizes = {symbol: int(size) for symbol, size in _SIZE.findall(name)}
        step = _STEP.search(name)
        return cls(name, int(seed or 0), sizes, step=int(step[1]) - 1 if step else None)


_SIZE = re.compile(r"(\S+)=(\d+)")


_STEP = re.compile(r" step (\d+)$")


@dataclass(frozen=True)
class FixedSize:
    """A symbol that an artifact takes at one size alone, though its contract lets it move."""

    symbol: str = described("The symbol.")
    size: int = described("The size.", minimum=0)

    def __str__(self) -> str:
        """`batch is fixed at 2`."""
        return f"{self.symbol} is fixed at {self.size}"


@dataclass(frozen=True)
class SizeLimit:
    """What an exporter (`by`) made of a size that the contract lets move, and the model's line that is to blame.

    `of` is an expression of the `symbols`. It was `fixed` at the number `to`; or it is taken only in `steps`, of which
    `to` is the formula in n; or it is allowed only in the `range` that `to` is, and was checked beyond.
    """

    of: str = described("The size, as an expression of the symbols.")
    rule: Literal["fixed", "steps", "range"] = described(
        "Whether it was fixed at a number, is taken only in steps, or is allowed only in a range and was checked "
        "beyond."
    )
    to: str = described("The number, the formula of the steps in n, or the range.")
    symbols: tuple[str, ...] = described("The symbols that the size follows from.")
    place: str = described("The line of the model that is to blame, file:line; empty where it is not known.", "")
    by: str = described("The exporter.", "torch.export")

    @property
    def follows(self) -> bool:
        """Whether it is no symbol's own size that was fixed, but one that follows from it."""
        return self.rule == "fixed" and self.of not in self.symbols

    def __str__(self) -> str:
        """In words, with the place in brackets."""
        where = f" ({self.place})" if self.place else ""
        if self.rule == "fixed":
            return f"{self.by} fixed {self.of} at {self.to}{where}"
        if self.rule == "steps":
            return f"{self.by} takes {self.of} only as {self.to}{where}"
        return f"{self.by} allows {self.of} only {self.to}; checked beyond that{where}"


@dataclass(frozen=True)
class Warned:
    """What an exporter warned of, with the source line that it named.

    `unrecorded` says that the line changes a tensor in a way that no trace and no graph records.
    """

    message: str = described("What it said.")
    place: str = described("The source line that it named, file:line; empty where it named none.", "")
    unrecorded: bool = described(
        "Whether the line changes a tensor in a way that no trace and no graph records.", False
    )

    def __str__(self) -> str:
        """`model.py:3: message`."""
        return f"{self.place}: {self.message}" if self.place else self.message

    @classmethod
    def of_text(cls, text: str) -> Warned:
        """A warning as manifests held it before they had a field for its place."""
        return cls(text)


@dataclass(frozen=True)
class CaseParity:
    """One output at one case and seed; `output` is empty, and all is FAIL, where the case itself failed."""

    case: str = described("The golden's case.")
    seed: int = described("Its seed.")
    output: str = described("The output; empty where the case itself failed.")
    verdict: Verdict = described("The verdict; drift passes by the RMSE alone, quantized by the cosine.")
    max_abs: float | None = described("Largest absolute difference from the reference.", None, minimum=0)
    rmse_ratio: float | None = described("RMSE over eager's own RMSE, both against the reference.", None, minimum=0)
    cosine: float | None = described("Cosine similarity with the reference.", None, minimum=-1.000001, maximum=1.000001)


@dataclass(frozen=True)
class Parity:
    """The worst over all outputs and cases, each number by itself; a session's has the parts too.

    `refused` are cases beside those compared: of sizes that the artifact does not promise, and its contract refuses.
    `unpropagated` says where NaN or infinity ends in the artifact and not in eager; None where that was not tried.
    """

    verdict: Verdict = described("The verdict; drift passes by the RMSE alone, quantized by the cosine.")
    max_abs: float | None = described("Largest absolute difference from the reference.", minimum=0)
    max_rel: float | None = described("Largest difference relative to the reference.", minimum=0)
    rmse_ratio: float | None = described("RMSE over eager's own RMSE, both against the reference.", minimum=0)
    cosine: float | None = described(
        "Smallest cosine similarity with the reference.", minimum=-1.000001, maximum=1.000001
    )
    worst: str = described("Output, index, case and seed of the worst element.")
    reason: str = described("Why it failed; empty when it passed.", "")
    cases: int = described("How many cases were compared.", 0, minimum=0)
    parts: tuple[CaseParity, ...] = described("Of a session: each output at each case. Empty elsewhere.", ())
    refused: int = described(
        "How many cases more are of sizes that the artifact does not promise, and were refused by its contract.",
        0,
        minimum=0,
    )
    unpropagated: tuple[str, ...] | None = described(
        "Where NaN or infinity ends in the artifact and not in eager, in words; null where that was not tried.", None
    )
    fixed: tuple[FixedSize, ...] = described("Sizes that the artifact was found to fix.", ())
