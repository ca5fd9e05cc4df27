"""A sequence of records kept as columns: millions of events of a trace fit in memory.

A record of a trace takes some 250 bytes as an object and some 40 as a row here.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any, Generic, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]
"""Nanoseconds."""
Indices = NDArray[np.intp]
Mask = NDArray[np.bool_]
T = TypeVar("T")


class Columns(Sequence[T], Generic[T]):
    """Records of one frozen dataclass; each is made anew as it is read.

    Fields annotated `int` are 64-bit columns. Every other value is kept once; its column has its
    number.
    """

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        plain = [field.type == "int" for field in fields(kind)]  # type: ignore[arg-type]
        self._names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
        self._columns = [array("q" if each else "i") for each in plain]
        self._values: list[dict[Any, int] | None] = [None if each else {} for each in plain]

    def add(self, *values: Any) -> None:
        """Append the record with these values, in the order of its fields; all of it or none."""
        length = len(self)
        try:
            for column, known, value in zip(self._columns, self._values, values, strict=True):
                column.append(value if known is None else known.setdefault(value, len(known)))
        except (TypeError, OverflowError):
            for column in self._columns:
                del column[length:]
            raise

    def __len__(self) -> int:
        return len(self._columns[-1])

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        places = range(len(self))[index]
        several = isinstance(places, range)
        found = tuple(self.at(np.array(places if several else [places], dtype=np.intp)))
        return found if several else found[0]

    def __iter__(self) -> Iterator[T]:
        both = zip(self._columns, self._values, strict=True)
        read: list[Any] = [
            c if known is None else map(list(known).__getitem__, c) for c, known in both
        ]
        return map(self._kind, *read)

    def sorted(self) -> Sequence[T]:
        """The same records by their begin; of those that begin together the longest first."""
        begins, ends = self.numbers("begin_ns"), self.numbers("end_ns")
        if (begins[1:] > begins[:-1]).all():
            return self
        return self.at(np.lexsort((begins - ends, begins)))

    def shift(self, ns: int) -> None:
        """Add `ns` to every time."""
        for position, name in enumerate(self._names):
            if name.endswith("_ns"):
                self._columns[position] = array("q", (v + ns for v in self._columns[position]))

    def numbers(self, name: str) -> Times:
        """The column of a field annotated `int`. It is not copied: nothing may be added later."""
        return np.frombuffer(self._columns[self._names.index(name)], dtype=np.int64)

    def values(self, name: str) -> tuple[list[Any], NDArray[np.int32]]:
        """The values of another field, each once, and the place of each record's among them."""
        position = self._names.index(name)
        rows = np.frombuffer(self._columns[position], dtype=np.int32)
        return list(self._values[position] or ()), rows

    def at(self, places: Indices) -> Columns[T]:
        """The records at these places, in their order."""
        found: Columns[T] = Columns(self._kind)
        found._columns = [
            array(each.typecode, np.frombuffer(each, dtype=each.typecode)[places].tobytes())
            for each in self._columns
        ]
        found._values = self._values
        return found


def numbers_of(records: Sequence[Any], name: str) -> Times:
    """The values of one integer field, of columns or of any other records."""
    if isinstance(records, Columns):
        return records.numbers(name)
    return np.fromiter((getattr(each, name) for each in records), np.int64, len(records))


def begins(events: Sequence[Any]) -> Times:
    """When each begins."""
    return numbers_of(events, "begin_ns")


def ends(events: Sequence[Any]) -> Times:
    """When each ends."""
    return numbers_of(events, "end_ns")


def values_of(records: Sequence[Any], name: str) -> tuple[list[Any], NDArray[np.int32]]:
    """The same of columns or of any other records."""
    if isinstance(records, Columns):
        return records.values(name)
    known: dict[Any, int] = {}
    rows = (known.setdefault(getattr(each, name), len(known)) for each in records)
    places = np.fromiter(rows, np.int32, len(records))
    return list(known), places


def selected(records: Sequence[T], keep: Mask) -> Sequence[T]:
    """The records of which this is true; columns stay columns."""
    if keep.all():
        return records
    if isinstance(records, Columns):
        return records.at(np.flatnonzero(keep))
    return [record for record, kept in zip(records, keep, strict=True) if kept]
