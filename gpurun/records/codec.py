"""Frozen dataclasses to and from plain JSON values; an unknown or missing field is an error."""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Callable
from typing import Any, TypeVar, Union, cast

T = TypeVar("T")

JsonValue = Any
"""A value that `json.dumps` takes as it is (kept as `Any`: mypy has no recursive JSON type)."""

Decoder = Callable[[JsonValue, str], Any]
"""Makes what a type holds of a JSON value that stands at a place ("$.a[0]")."""
LEAST_INT, MOST_INT = -(2**63), 2**64 - 1


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
    return _decoder(kind)(value, where)


@functools.cache
def _decoder(kind: Any) -> Decoder:
    """The decoder of this type, cached: inspecting a type takes longer than decoding a value of
    it."""
    origin = typing.get_origin(kind)
    if kind is Any:
        return lambda value, where: value
    if origin in (Union, types.UnionType):
        options = [option for option in typing.get_args(kind) if option is not type(None)]
        if len(options) == 1:
            return functools.partial(_decode_optional, _decoder(options[0]))
        return functools.partial(_decode_union, typing.get_args(kind))
    if origin in (tuple, list):
        return functools.partial(_decode_sequence, origin, typing.get_args(kind))
    if origin is dict:
        return functools.partial(_decode_table, typing.get_args(kind)[1])
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return functools.partial(_decode_choice, kind)
    if dataclasses.is_dataclass(kind):
        return functools.partial(_decode_record, cast(type, kind))
    return functools.partial(_decode_scalar, kind)


def _decode_table(item: Any, value: JsonValue, where: str) -> Any:
    if not isinstance(value, dict):
        raise RecordError(f"{where}: expected an object, found {type(value).__name__}")
    return {k: _decode(item, v, f"{where}.{k}") for k, v in value.items()}


def _decode_choice(kind: type[enum.Enum], value: JsonValue, where: str) -> Any:
    try:
        return kind(value)
    except ValueError as error:
        raise RecordError(f"{where}: {error}") from None


def _decode_optional(decoder: Decoder, value: JsonValue, where: str) -> Any:
    return None if value is None else decoder(value, where)


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


def _decode_sequence(origin: Any, args: tuple[Any, ...], value: JsonValue, where: str) -> Any:
    if not isinstance(value, list):
        raise RecordError(f"{where}: expected a list, found {type(value).__name__}")
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
    known, required = _fields(cls)
    unknown = sorted(value.keys() - known.keys())
    if unknown:
        raise RecordError(f"{where}: unknown field {unknown[0]!r}")
    for name in required:
        if name not in value:
            raise RecordError(f"{where}: field {name!r} is missing")
    return cls(**{name: known[name](item, f"{where}.{name}") for name, item in value.items()})


@functools.cache
def _fields(cls: type) -> tuple[dict[str, Decoder], tuple[str, ...]]:
    """The decoder of each field of a record, and the fields that must be there."""
    hints, fields = typing.get_type_hints(cls), dataclasses.fields(cls)
    missing = dataclasses.MISSING
    required = [f for f in fields if f.default is missing and f.default_factory is missing]
    return {f.name: _decoder(hints[f.name]) for f in fields}, tuple(f.name for f in required)


def _decode_scalar(kind: Any, value: JsonValue, where: str) -> Any:
    if type(value) is int and kind in (int, float) and not LEAST_INT <= value <= MOST_INT:
        raise RecordError(f"{where}: the number has more than 64 bits")
    if type(value) is kind:
        return value
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind in (int, float, str) and (not isinstance(value, kind) or isinstance(value, bool)):
        raise RecordError(f"{where}: expected {kind.__name__}, found {type(value).__name__}")
    if kind is bool and not isinstance(value, bool):
        raise RecordError(f"{where}: expected bool, found {type(value).__name__}")
    if kind is type(None) and value is not None:
        raise RecordError(f"{where}: expected null")
    return value
