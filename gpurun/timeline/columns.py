"""A sequence of records kept as columns: millions of events of a trace fit in memory.

A record of a trace takes some 250 bytes as an object and some 40 as a row here.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Times = NDArray[np.int64]

T = TypeVar("T")


class Columns(Sequence[T], Generic[T]):
    """Records of one frozen dataclass; each is made anew as it is read.

    Fields annotated `int` are 64-bit columns. Every other value is kept once and referred to.
    """

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        names = [(field.name, field.type == "int") for field in fields(kind)]  # type: ignore[arg-type]
        self._numbers = [array("q") if plain else None for _, plain in names]
        self._references = [None if plain else _References() for _, plain in names]
        self._length = 0

    def add(self, *values: Any) -> None:
        """Append the record with these values, in the order of its fields; all of it or none."""
        rows = zip(self._numbers, self._references, values, strict=True)
        try:
            for number, reference, value in rows:
                if number is not None:
                    number.append(value)
                elif reference is not None:
                    reference.append(value)
        except (TypeError, OverflowError):
            for column in self._columns():
                del column[self._length :]
            raise
        self._length += 1

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(self._length)))
        return self._kind(*(column[index] for column in self._columns()))

    def __iter__(self) -> Iterator[T]:
        return map(self._kind, *self._columns())

    def sorted(self) -> Sequence[T]:
        """The same records by their begin; of those that begin together the longest first."""
        begins, ends = self.numbers("begin_ns"), self.numbers("end_ns")
        if (begins[1:] > begins[:-1]).all():
            return self
        return self.at(np.lexsort((begins - ends, begins)))

    def shift(self, ns: int) -> None:
        """Add `ns` to every time."""
        for position, field in enumerate(fields(self._kind)):  # type: ignore[arg-type]
            column = self._numbers[position]
            if column is not None and field.name.endswith("_ns"):
                self._numbers[position] = array("q", (value + ns for value in column))

    def numbers(self, name: str) -> Times:
        """The column of a field annotated `int`. It is not copied: nothing may be added later."""
        names = [field.name for field in fields(self._kind)]  # type: ignore[arg-type]
        column = self._numbers[names.index(name)]
        if column is None:
            raise TypeError(f"{name} is no column of numbers")
        return np.frombuffer(column, dtype=np.int64)

    def at(self, places: NDArray[np.intp]) -> Columns[T]:
        """The records at these places, in their order."""
        found: Columns[T] = Columns(self._kind)
        found._numbers = [None if c is None else _at(c, places) for c in self._numbers]
        found._references = [None if r is None else r.at(places) for r in self._references]
        found._length = len(places)
        return found

    def _columns(self) -> list[Any]:
        return [
            n if n is not None else r for n, r in zip(self._numbers, self._references, strict=True)
        ]


class _References:
    """A column of values that repeat: each value once, and a number a row."""

    def __init__(self) -> None:
        self._values: list[Any] = []
        self._numbers: dict[Any, int] = {}
        self._rows = array("i")

    def append(self, value: Any) -> None:
        number = self._numbers.setdefault(value, len(self._values))
        if number == len(self._values):
            self._values.append(value)
        self._rows.append(number)

    def __delitem__(self, rows: slice) -> None:
        del self._rows[rows]

    def at(self, places: NDArray[np.intp]) -> _References:
        found = _References()
        found._values, found._numbers = self._values, self._numbers
        found._rows = _at(self._rows, places)
        return found

    def __getitem__(self, index: int) -> Any:
        return self._values[self._rows[index]]

    def __iter__(self) -> Iterator[Any]:
        return map(self._values.__getitem__, self._rows)


def _at(column: array[int], places: NDArray[np.intp]) -> array[int]:
    return array(column.typecode, np.frombuffer(column, dtype=column.typecode)[places].tobytes())


def numbers_of(records: Sequence[Any], name: str) -> Times:
    """The values of one integer field, of columns or of any other records."""
    if isinstance(records, Columns):
        return records.numbers(name)
    return np.fromiter((getattr(each, name) for each in records), np.int64, len(records))


def selected(records: Sequence[T], keep: NDArray[np.bool_]) -> Sequence[T]:
    """The records of which this is true; columns stay columns."""
    if keep.all():
        return records
    if isinstance(records, Columns):
        return records.at(np.flatnonzero(keep))
    return [record for record, kept in zip(records, keep, strict=True) if kept]
