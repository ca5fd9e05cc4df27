"""Frozen dataclasses to and from plain JSON values; an unknown or missing field is an error."""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from typing import Any, TypeVar, Union, cast

T = TypeVar("T")

JsonValue = Any
"""A value that `json.dumps` takes as it is (kept as `Any`: mypy has no recursive JSON type)."""


class RecordError(ValueError):
    """A document does not have the shape of the record that it should hold."""


def to_json(value: Any) -> JsonValue:
    """The plain JSON value of a record, tuple, enum or scalar."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (list, tuple)):
        return [to_json(v) for v in value]
    if isinstance(value, dict):
        return {str(k): to_json(v) for k, v in value.items()}
    return value


def from_json(cls: type[T], document: JsonValue, where: str = "$") -> T:
    """Build a record of type `cls` from a JSON value; `RecordError` names the place that is off."""
    return cast(T, _decode(cls, document, where))


def _decode(kind: Any, value: JsonValue, where: str) -> Any:
    origin = typing.get_origin(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        return _decode_union(typing.get_args(kind), value, where)
    if origin in (tuple, list):
        if not isinstance(value, list):
            raise RecordError(f"{where}: expected a list, found {type(value).__name__}")
        return _decode_sequence(kind, origin, value, where)
    if origin is dict:
        if not isinstance(value, dict):
            raise RecordError(f"{where}: expected an object, found {type(value).__name__}")
        item = typing.get_args(kind)[1]
        return {k: _decode(item, v, f"{where}.{k}") for k, v in value.items()}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        try:
            return kind(value)
        except ValueError as error:
            raise RecordError(f"{where}: {error}") from None
    if dataclasses.is_dataclass(kind):
        return _decode_record(cast(type, kind), value, where)
    return _decode_scalar(kind, value, where)


def _decode_union(options: tuple[Any, ...], value: JsonValue, where: str) -> Any:
    if value is None and type(None) in options:
        return None
    errors = []
    for option in options:
        if option is type(None):
            continue
        try:
            return _decode(option, value, where)
        except RecordError as error:
            errors.append(str(error))
    raise RecordError(errors[0] if errors else f"{where}: nothing fits")


def _decode_sequence(kind: Any, origin: Any, value: list[Any], where: str) -> Any:
    args = typing.get_args(kind)
    if origin is tuple and len(args) > 1 and args[1] is not Ellipsis:
        if len(args) != len(value):
            raise RecordError(f"{where}: expected {len(args)} items, found {len(value)}")
        return tuple(
            _decode(a, v, f"{where}[{i}]") for i, (a, v) in enumerate(zip(args, value, strict=True))
        )
    items = [_decode(args[0], v, f"{where}[{i}]") for i, v in enumerate(value)]
    return tuple(items) if origin is tuple else items


def _decode_record(cls: type, value: JsonValue, where: str) -> Any:
    if not isinstance(value, dict):
        raise RecordError(f"{where}: expected an object, found {type(value).__name__}")
    hints = _type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}
    unknown = sorted(set(value) - set(fields))
    if unknown:
        raise RecordError(f"{where}: unknown field {unknown[0]!r}")
    arguments = {}
    for name, field in fields.items():
        if name in value:
            arguments[name] = _decode(hints[name], value[name], f"{where}.{name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise RecordError(f"{where}: field {name!r} is missing")
    return cls(**arguments)


@functools.cache
def _type_hints(cls: type) -> dict[str, Any]:
    """The types of a record's fields: evaluating them takes longer than decoding a record."""
    return typing.get_type_hints(cls)


def _decode_scalar(kind: Any, value: JsonValue, where: str) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind in (int, float, str) and (not isinstance(value, kind) or isinstance(value, bool)):
        raise RecordError(f"{where}: expected {kind.__name__}, found {type(value).__name__}")
    if kind is bool and not isinstance(value, bool):
        raise RecordError(f"{where}: expected bool, found {type(value).__name__}")
    if kind is type(None) and value is not None:
        raise RecordError(f"{where}: expected null")
    return value
