"""Loading weights from a file into a model, with the key prefixes that training wrappers add removed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from exporter.core import source_lines
from exporter.core.errors import RecipeError
from exporter.model import checkpoint_files

StateDict = dict[str, Any]

CONTAINERS = (  # where training loops keep a state dict; on a tie the first one wins
    "state_dict",
    "model_state_dict",
    "model",
    "module",
    "net",
    "network",
    "params",
    "weights",
    "ema",
    "model_ema",
    "ema_state_dict",
    "state_dict_ema",
)
NESTED = 3
COMPILED = frozenset({"_orig_mod"})
WRAPPERS = COMPILED | {"module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
PREFIXES = ("model", "net", "network")  # attributes under which a training module holds the model
_SHOWN = 4


def load_into(model: nn.Module, path: str | Path, allow_partial: bool) -> list[str]:
    """Copy a checkpoint's weights into the model and record that in its attribute `exporter_weights`.

    Keys are compared without the parts that torch.compile, data parallelism and sharding add, on both sides.

    Args:
        model: of the right architecture; its dtypes and device do not change.
        path: see `checkpoint_files.read`.
        allow_partial: load what fits and return the rest as notes.

    Returns:
        Notes for the user: casts, a choice between two state dicts, keys that did not fit.

    Raises:
        RecipeError: the file cannot be read, has no key of the model, or does not fit and `allow_partial` is not set.
    """
    file = Path(path)
    fit, others = _best_fit(file, checkpoint_files.read(file), list(model.state_dict()))
    checkpoint_files.refuse_subclasses(file, fit.tensors)
    problems, casts = _copy(file, model, fit)
    if problems and not allow_partial:
        raise RecipeError(
            f"{file.name} does not fit {type(model).__name__}: {'; '.join(problems)}",
            "give the model that it was saved from, or load what fits with --allow-partial",
        )
    model.exporter_weights = f"checkpoint {file.name}{' (in part)' if problems else ''}"  # type: ignore[assignment]
    return [f"checkpoint {file.name}: {note}" for note in (*others, *casts, *problems)]


@dataclass(frozen=True)
class _Fit:
    """A state dict whose keys are renamed to the model's keys where they fit."""

    place: str
    tensors: StateDict
    fitting: int


def _best_fit(file: Path, found: Mapping[Any, Any], keys: Sequence[str]) -> tuple[_Fit, list[str]]:
    """Return the state dict of the file, with its keys renamed, that fits most of the model's keys."""
    fits = [_fit(place, tensors, keys) for place, tensors in _state_dicts(found)]
    if not fits:
        raise RecipeError(
            f"{file.name} holds no state dict; it has {_listed(sorted(map(str, found)))}", "save model.state_dict()"
        )
    best = max(fits, key=lambda fit: fit.fitting)  # max returns the first of several
    if not best.fitting:
        raise RecipeError(
            f"{file.name} has none of the model's keys: it has {_listed(list(best.tensors))}, "
            f"the model {_listed(list(keys))}",
            "give a checkpoint of this model",
        )
    others = [fit.place for fit in fits if fit is not best and fit.fitting == best.fitting]
    return best, [f"used {best.place}, not {' or '.join(others)}"] if others else []


def _state_dicts(found: Mapping[Any, Any], place: str = "", depth: int = NESTED) -> Iterator[tuple[str, StateDict]]:
    """Yield every mapping that contains tensors, with the names of the containers around it."""
    tensors = {key: value for key, value in found.items() if isinstance(key, str) and not isinstance(value, Mapping)}
    if any(isinstance(value, torch.Tensor) for value in tensors.values()):
        yield place or "the top", tensors
    for name in CONTAINERS if depth else ():
        if isinstance(found.get(name), Mapping):
            yield from _state_dicts(found[name], f"{place}.{name}" if place else name, depth - 1)


def _fit(place: str, tensors: StateDict, keys: Sequence[str]) -> _Fit:
    """Rename the keys to the model's, removing the prefix (on either side) that makes most of them fit."""
    wrappers = next(
        w for w in (WRAPPERS, COMPILED, frozenset[str]()) if _are_distinct(tensors, w) and _are_distinct(keys, w)
    )
    best = _Fit(place, tensors, -1)
    for theirs, ours in [("", ""), *((p, "") for p in PREFIXES), *(("", p) for p in PREFIXES)]:
        names = {_bare(key, wrappers, ours): key for key in keys}
        renamed = {_bare(key, wrappers, theirs): value for key, value in tensors.items()}
        fitting = len(names.keys() & renamed.keys())
        if fitting > best.fitting and len(renamed) == len(tensors):
            best = _Fit(place, {names.get(name, name): value for name, value in renamed.items()}, fitting)
    return best


def _are_distinct(keys: Sequence[str] | StateDict, wrappers: frozenset[str]) -> bool:
    return len({_bare(key, wrappers) for key in keys}) == len(keys)


def _bare(key: str, wrappers: frozenset[str], prefix: str = "") -> str:
    """Return a key without the parts added by wrappers, and then without a prefix."""
    bare = ".".join(part for part in key.split(".") if part not in wrappers)
    return bare.removeprefix(f"{prefix}.") if prefix else bare


def _copy(file: Path, model: nn.Module, fit: _Fit) -> tuple[list[str], list[str]]:
    """Copy what fits. Returns problems with the rest, and notes on the dtypes that were cast."""
    state = model.state_dict()
    mismatches = {
        key: said for key, value in fit.tensors.items() if key in state and (said := _mismatch(value, state[key]))
    }
    loadable = {key: value for key, value in fit.tensors.items() if key not in mismatches}
    casts = Counter(
        f"{_dtype(value)} to {_dtype(state[key])}"
        for key, value in loadable.items()
        if key in state and _dtype(value) != _dtype(state[key])
    )
    try:
        result = model.load_state_dict(loadable, strict=False)
    except Exception as error:  # modules may define their own loaders
        raise RecipeError(f"{file.name} does not load: {source_lines.message(error)}", "save it again") from error
    tied = _tied(state)
    missing = [
        key
        for key in result.missing_keys
        if key not in mismatches
        and not key.endswith("num_batches_tracked")
        and not tied.get(key, set()) & loadable.keys()
    ]
    unexpected = [key for key in result.unexpected_keys if not _is_known(key, model, fit.tensors[key])]
    problems = [
        *_counted("missing", missing),
        *_counted("unexpected", unexpected),
        *_counted("with a different shape or kind", [f"{key}: {said}" for key, said in mismatches.items()]),
        *_counted("different, but tied in the model", _torn(tied, loadable)),
    ]
    return problems, [f"{count} tensors cast from {cast}" for cast, count in casts.items()]


def _mismatch(given: Any, wanted: Any) -> str:
    """Return why a value cannot be copied into the model's, or ""."""
    if not isinstance(wanted, torch.Tensor) or nn.parameter.is_lazy(wanted):
        return ""
    if not isinstance(given, torch.Tensor):
        return f"a {type(given).__name__} in the file, a tensor in the model"
    if given.shape != wanted.shape:
        return f"{list(given.shape)} in the file, {list(wanted.shape)} in the model"
    if (given.is_floating_point(), given.is_complex(), given.is_quantized) != (
        wanted.is_floating_point(),
        wanted.is_complex(),
        wanted.is_quantized,
    ):
        return f"{_dtype(given)} in the file, {_dtype(wanted)} in the model"
    return ""


def _tied(state: Mapping[str, Any]) -> dict[str, set[str]]:
    """Map each key that shares memory with others to its group."""
    groups: dict[Any, set[str]] = {}
    for key, value in state.items():
        if (
            isinstance(value, torch.Tensor)
            and not nn.parameter.is_lazy(value)
            and not value.is_quantized
            and value.numel()
        ):
            groups.setdefault((value.data_ptr(), value.shape, value.stride()), set()).add(key)
    return {key: group for group in groups.values() if len(group) > 1 for key in group}


def _torn(tied: Mapping[str, set[str]], loaded: StateDict) -> list[str]:
    """Return groups of tied keys for which the checkpoint has different values."""
    torn = []
    for group in {tuple(sorted(group)) for group in tied.values()}:
        there = [key for key in group if key in loaded]
        if any(not torch.equal(loaded[there[0]], loaded[key]) for key in there[1:]):
            torn.append(" and ".join(there))
    return sorted(torn)


def _is_known(key: str, model: nn.Module, value: Any) -> bool:
    """Return whether an unmatched key is harmless: a non-persistent buffer, the counter of an average, or no tensor."""
    return key in dict(model.named_buffers()) or key == "n_averaged" or not isinstance(value, torch.Tensor)


def _counted(what: str, found: Sequence[str]) -> list[str]:
    return [f"{len(found)} {'key' if len(found) == 1 else 'keys'} {what} ({_listed(found)})"] if found else []


def _listed(found: Sequence[str]) -> str:
    return ", ".join(found[:_SHOWN]) + (", ..." if len(found) > _SHOWN else "")


def _dtype(tensor: Any) -> str:
    return str(getattr(tensor, "dtype", type(tensor).__name__)).removeprefix("torch.")
