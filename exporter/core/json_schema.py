"""Generate JSON Schemas (2020-12) of settings and records from their types and the metadata of their fields."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from typing import Any, Literal

from exporter.core.option import Setting, settings

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_KEY = "schema"
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
_OF_THE_WHOLE = ("description", "minItems")  # keywords of the field, not of its items or values


def described(description: str, default: Any = dataclasses.MISSING, **limits: Any) -> Any:
    """Return a dataclass field of a record that is written as JSON; `default` may be a factory function.

    `limits` are JSON Schema keywords such as minimum or pattern. For a list or an object they apply to its values.
    """
    metadata = {_KEY: {"description": description} | limits}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def of_setting(setting: Setting) -> dict[str, Any]:
    """Return the schema of a setting's value."""
    found = _type(setting.kind, _limits(setting))
    if setting.multiple:
        found = {"type": "array", "items": found | ({"minLength": 1} if setting.kind is str else {})}
    return found | {"description": setting.option.help}


def _limits(setting: Setting) -> dict[str, Any]:
    option = setting.option
    if option.choices:
        return {"enum": list(option.choices)}
    bounds = {"minimum": option.minimum, "exclusiveMinimum": option.above, "maximum": option.maximum}
    return {name: bound for name, bound in bounds.items() if bound is not None}


def of_record(record: type, title: str) -> dict[str, Any]:
    """Return the schema of a record and its nested records. Every field is required, because all are always written."""
    defs: dict[str, Any] = {}
    found = _record(record, defs)
    return {"$schema": DIALECT, "title": title} | found | {"$defs": dict(sorted(defs.items()))}


def _record(record: type, defs: dict[str, Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(record)
    known = {setting.name: _limits(setting) | {"description": setting.option.help} for setting in settings(record)}
    properties = {
        field.name: _of(hints[field.name], dict(field.metadata.get(_KEY) or known.get(field.name, {})), defs)
        for field in dataclasses.fields(record)
    }
    return {
        "type": "object",
        "description": " ".join((inspect.getdoc(record) or "").partition("\n\n")[0].split()),
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _of(hint: Any, limits: dict[str, Any], defs: dict[str, Any]) -> dict[str, Any]:
    whole = {name: limits.pop(name) for name in _OF_THE_WHOLE if name in limits}
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        name = typing.cast(type, hint).__name__
        if name not in defs:
            defs[name] = {}  # a placeholder, because a record may be recursive
            defs[name] = _record(typing.cast(type, hint), defs)
        return {"$ref": f"#/$defs/{name}"} | whole
    if origin is Literal:
        return {"enum": list(args)} | whole
    if origin is tuple:
        several = {"minItems": len(args), "maxItems": len(args)} if Ellipsis not in args else {}
        return {"type": "array", "items": _of(args[0], limits, defs)} | several | whole
    if origin is dict:
        if typing.get_origin(args[1]) is not dict and "propertyNames" in limits:
            whole["propertyNames"] = limits.pop("propertyNames")
        return {"type": "object", "additionalProperties": _of(args[1], limits, defs)} | whole
    if origin in (typing.Union, types.UnionType):
        return _union(args, limits, defs) | whole
    return _type(hint, limits) | whole


def _union(options: tuple[Any, ...], limits: dict[str, Any], defs: dict[str, Any]) -> dict[str, Any]:
    if all(option in _TYPES for option in options):
        if float in options:
            options = tuple(option for option in options if option is not int)
        if "enum" in limits:
            return {"enum": [*limits["enum"], None]}
        names = [_TYPES[option] for option in options]
        return {"type": names if len(names) > 1 else names[0]} | limits
    numbers = tuple(option for option in options if option in (int, float))
    kept = tuple(option for option in options if option is not int or float not in numbers)
    return {"anyOf": [_of(option, {} if option is type(None) else dict(limits), defs) for option in kept]}


def _type(kind: Any, limits: dict[str, Any]) -> dict[str, Any]:
    return limits if "enum" in limits else {"type": _TYPES[kind]} | limits
