"""Convert records to JSON, and back from JSON that may not be trustworthy."""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from typing import Any, Literal, TypeVar

from exporter.core import source_lines
from exporter.core.contract_records import CONTRACT_SCHEMAS, Contract
from exporter.core.errors import ArtifactError
from exporter.core.limits import LARGEST
from exporter.core.records import SCHEMA

Record = TypeVar("Record")
LONGEST = 80  # characters of a wrong value in a message
_WORDS = {dict: "an object", list: "a list", str: "a string", int: "an integer", float: "a number", bool: "a boolean"}
SCHEMAS: dict[type, tuple[int, ...]] = {Contract: CONTRACT_SCHEMAS}  # all other records have SCHEMA only


def to_json(record: Any, indent: int | None = 2) -> str:
    """Return the record as JSON that `from_json` reads.

    Floats that are not finite or exceed LARGEST become null. Control characters in strings are replaced.
    """
    return json.dumps(_plain(dataclasses.asdict(record)), indent=indent, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if abs(value) <= LARGEST else None
    if isinstance(value, str):
        return source_lines.printable(value)
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def from_json(kind: type[Record], text: str | bytes) -> Record:
    """Read a record, replacing control characters in its strings.

    Raises ArtifactError if the text is not JSON, has an unknown schema, or does not match the record's types.
    """
    try:
        data = json.loads(text)
        if not isinstance(data, dict):
            raise TypeError("not an object")
        return typing.cast(Record, _decode(kind, data, kind.__name__))
    except (TypeError, KeyError, ValueError, OverflowError, RecursionError) as error:
        raise ArtifactError(f"not a valid {kind.__name__}: {error}") from error


def _decode(kind: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _decode_record(typing.cast(type, kind), value, where)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(args, value, where)
    if origin is Literal:
        if value not in args:
            raise TypeError(f"{where} is {value!r}, not one of {', '.join(map(repr, args))}")
        return value
    if origin is tuple:
        return _decode_tuple(args, value, where)
    if origin is dict:
        _expect(dict, value, where)
        return {_decode(str, key, where): _decode(args[1], item, f"{where}.{key}") for key, item in value.items()}
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    _expect(kind, value, where)
    if kind is float and not abs(value) <= LARGEST:
        raise TypeError(f"{where} is {value}, not a finite number within ±{LARGEST:g}")
    if kind is int and value.bit_length() > 64:
        raise TypeError(f"{where} has more than 64 bits")
    return source_lines.printable(value) if kind is str else value


def _decode_record(kind: type, value: Any, where: str) -> Any:
    if isinstance(value, str) and (of_text := getattr(kind, "of_text", None)):
        return of_text(source_lines.printable(value))
    _expect(dict, value, where)
    _expect_schema(kind, value)
    hints = _hints(kind)
    unknown = value.keys() - hints.keys()
    if unknown:
        raise TypeError(f"{where} has an unknown field {json.dumps(sorted(unknown)[0])}")
    fields = {name: _decode(hints[name], item, f"{where}.{name}") for name, item in value.items()}
    if lacking := [
        field.name for field in dataclasses.fields(kind) if field.name not in fields and _is_required(field)
    ]:
        raise TypeError(f"{where} has no field {json.dumps(lacking[0])}")
    try:
        return kind(**fields)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.init and field.default is field.default_factory is dataclasses.MISSING


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _expect_schema(kind: type, value: dict[str, Any]) -> None:
    known = SCHEMAS.get(kind, (SCHEMA,))
    if "schema" not in value and any(field.name == "schema" for field in dataclasses.fields(kind)):
        raise ArtifactError("it has no schema")
    if value.get("schema", known[-1]) not in known:
        only = " and ".join(map(str, known))
        raise ArtifactError(
            f"schema {value['schema']!r} is not known, only {only}", "use the exporter release that wrote it"
        )


def _decode_union(options: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in options:
        return None
    problem: Exception = TypeError(f"{where} must not be {value!r}")
    for option in options:
        if option is type(None):
            continue
        try:
            return _decode(option, value, where)
        except (TypeError, ValueError) as error:
            problem = error
    raise problem


def _decode_tuple(args: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    _expect(list, value, where)
    kinds = [args[0]] * len(value) if args[-1] is Ellipsis else list(args)
    if len(kinds) != len(value):
        raise TypeError(f"{where} has {len(value)} items, not {len(kinds)}")
    return tuple(_decode(kind, item, f"{where}[{i}]") for i, (kind, item) in enumerate(zip(kinds, value, strict=True)))


def _expect(kind: type, value: Any, where: str) -> None:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{where} is {_shown(value)}, not {_WORDS.get(kind, kind.__name__)}")


def _shown(value: Any) -> str:
    """Return JSON as text, truncated if it is long."""
    text = json.dumps(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
