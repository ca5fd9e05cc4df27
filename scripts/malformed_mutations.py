"""Ways to damage a valid file, each with a name; `scripts/malformed_inputs.py` uses them."""

from __future__ import annotations

import json
import random
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

Mutation = Callable[[Path, random.Random], None]
"""Damages the file at a path."""

DEEP = 100_000
ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63, -(2**64), 10**400, 1e308, -1e308, 1e-320, 0.5,
    float("nan"), float("inf"), float("-inf"), "", "word", "1", "NaN", "\x00", "\ud800", "🦀" * 50,
    "../../etc/passwd", "x" * 100_000, [], [[]], [1, "2"], {}, {"a": {}}, [None] * 1000,
)  # fmt: skip
NUMBERS = (2**31, 2**63, -(2**64), 10**400, 1e308, -1e308, 1e-320, -1, 0,
           float("nan"), float("inf"), float("-inf"))  # fmt: skip
TOML_VALUES = (
    "true", "-1", "0", "1e400", "nan", "inf", "-inf", "9" * 5000, "9" * 30, '""', '"word"', "[]",
    "[[[]]]", "{}", "1979-05-27T07:32:00Z", "07:32:00", '"\\u0000"', "[1, 'a', {}]", '"5 %"',
    '["word"]', "{ a = 1 }", "0x10", '"nan"', '"1e9h"', "[nan, nan]", "[2, 1]",
)  # fmt: skip


def truncated(path: Path, draws: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: draws.randrange(len(content))])


def bits_flipped(path: Path, draws: random.Random) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(draws.choice((1, 1, 3, 30, 1000))):
        content[draws.randrange(len(content))] ^= 1 << draws.randrange(8)
    path.write_bytes(content)


def bytes_inserted(path: Path, draws: random.Random) -> None:
    content = path.read_bytes()
    place = draws.randrange(len(content))
    added = draws.choice((b"\x00", b"\xff\xfe", b"\n\n", b'"', b"}", b"[", draws.randbytes(64)))
    path.write_bytes(content[:place] + added + content[place:])


def part_repeated(path: Path, draws: random.Random) -> None:
    content = path.read_bytes()
    begin = draws.randrange(len(content))
    part = content[begin : begin + draws.randrange(1, 2000)]
    path.write_bytes(content[:begin] + part + content[begin:])


def empty(path: Path, draws: random.Random) -> None:
    path.write_bytes(draws.choice((b"", b"\n", b" ", b"null", b"\xef\xbb\xbf")))


def zeroed(path: Path, draws: random.Random) -> None:
    """A file system that lost its data after a power cut has zeros in its place."""
    content = path.read_bytes()
    begin = draws.choice((0, draws.randrange(len(content))))
    path.write_bytes(content[:begin] + bytes(len(content) - begin))


def other_encoding(path: Path, draws: random.Random) -> None:
    text = path.read_bytes().decode("utf-8", errors="replace")
    path.write_bytes(text.encode(draws.choice(("utf-16", "utf-32", "utf-8-sig", "utf-16-le"))))


def a_folder(path: Path, draws: random.Random) -> None:
    path.unlink()
    path.mkdir()


def unreadable(path: Path, draws: random.Random) -> None:
    """Reading fails with "Input/output error", or the link leads round in a circle."""
    path.unlink()
    path.symlink_to(draws.choice(("/proc/self/mem", path.name)))


def foreign(path: Path, draws: random.Random) -> None:
    others = [each for each in path.parents[1].rglob("*") if each.is_file() and each != path]
    path.write_bytes(draws.choice(others).read_bytes() if others else draws.randbytes(1000))


ON_BYTES: tuple[Mutation, ...] = (
    truncated, bits_flipped, bytes_inserted, part_repeated, empty, zeroed, other_encoding,
    a_folder, unreadable, foreign,
)  # fmt: skip


def deeply_nested(path: Path, draws: random.Random) -> None:
    text = path.read_text()
    values = [found.span(1) for found in re.finditer(r'[:=]\s*("[^"]*"|[\w.]+)', text)]
    begin, end = draws.choice(values)
    opening, closing_ = draws.choice((("[", "]"), ('{"a":', "}"), ("[", "")))
    path.write_text(text[:begin] + opening * DEEP + "1" + closing_ * DEEP + text[end:])


def wrong_type(path: Path, draws: random.Random) -> None:
    _edit(path, draws, lambda parent, key: _set(parent, key, draws.choice(ODD_VALUES)))


def wrong_number(path: Path, draws: random.Random) -> None:
    def change(parent: Any, key: Any) -> None:
        numbers = [spot for spot in _spots(parent[key]) if _is_number(spot[0][spot[1]])]
        inner, place = draws.choice(numbers) if numbers else (parent, key)
        _set(inner, place, draws.choice(NUMBERS))

    _edit(path, draws, change)


def wrong_key(path: Path, draws: random.Random) -> None:
    def change(parent: Any, key: Any) -> None:
        if isinstance(parent, dict):
            value = parent.pop(key)
            if draws.random() < 0.7:
                parent[draws.choice((f"{key}x", "", "\x00", "word", "🦀", key.upper()))] = value
        else:
            del parent[key]

    _edit(path, draws, change)


def values_swapped(path: Path, draws: random.Random) -> None:
    def change(parent: Any, key: Any) -> None:
        keys = list(parent) if isinstance(parent, dict) else range(len(parent))
        other = draws.choice(list(keys))
        parent[key], parent[other] = parent[other], parent[key]

    _edit(path, draws, change)


ON_JSON: tuple[Mutation, ...] = (
    deeply_nested, wrong_type, wrong_type, wrong_type, wrong_number, wrong_number, wrong_key,
    wrong_key, values_swapped,
)  # fmt: skip


def toml_value(path: Path, draws: random.Random) -> None:
    lines = path.read_text().splitlines()
    place = draws.choice([i for i, line in enumerate(lines) if " = " in line])
    lines[place] = f"{lines[place].partition(' = ')[0]} = {draws.choice(TOML_VALUES)}"
    path.write_text("\n".join(lines) + "\n")


def toml_key(path: Path, draws: random.Random) -> None:
    lines = path.read_text().splitlines()
    place = draws.choice([i for i, line in enumerate(lines) if line])
    odd = draws.choice(("x", "[x]", "[[run]]", "x = 1", "run = 1", '"" = 1', "[optimize", "= 3"))
    lines[place : place + draws.choice((0, 1))] = [odd]
    path.write_text("\n".join(lines) + "\n")


ON_TOML: tuple[Mutation, ...] = (deeply_nested, toml_value, toml_value, toml_value, toml_key)


def sql_values(path: Path, draws: random.Random) -> None:
    odd = "NULL", "''", "'word'", "1e308", "-1", "x'ff00'", "9223372036854775807", "9e999", "'{}'"
    with closing(sqlite3.connect(path)) as database:
        table = _table(database, draws)
        column = draws.choice([row[1] for row in database.execute(f'PRAGMA table_info("{table}")')])
        some = draws.choice(("1", f"rowid = (SELECT max(rowid) FROM [{table}])"))
        try:
            database.execute(f'UPDATE "{table}" SET "{column}" = {draws.choice(odd)} WHERE {some}')
        except sqlite3.DatabaseError:
            database.execute(f'DELETE FROM "{table}"')
        database.commit()


def sql_tables(path: Path, draws: random.Random) -> None:
    with closing(sqlite3.connect(path)) as database:
        table = _table(database, draws)
        columns = [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]
        column = draws.choice(columns)
        change = draws.choice((
            f'DROP TABLE "{table}"', f'DELETE FROM "{table}"', f'ALTER TABLE "{table}" RENAME TO x',
            f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "x"', "PRAGMA user_version = 77",
            f'ALTER TABLE "{table}" DROP COLUMN "{column}"',
        ))  # fmt: skip
        try:
            database.execute(change)
        except sqlite3.DatabaseError:
            database.execute(f'DROP TABLE "{table}"')
        database.commit()


def _table(database: sqlite3.Connection, draws: random.Random) -> str:
    names = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
    return str(draws.choice(database.execute(names).fetchall())[0])


ON_SQLITE: tuple[Mutation, ...] = (sql_values, sql_values, sql_values, sql_tables)


def csv_cells(path: Path, draws: random.Random) -> None:
    lines = path.read_text().splitlines()
    for _ in range(draws.choice((1, 5, 50))):
        row = draws.randrange(len(lines))
        cells = lines[row].split(",")
        odd = draws.choice(("", "word", "nan", "1e999", "-1", '"', "1,2", "9" * 30, "\x00"))
        cells[draws.randrange(len(cells))] = odd
        lines[row] = ",".join(cells)
    path.write_text("\n".join(lines) + "\n")


ON_CSV: tuple[Mutation, ...] = (csv_cells,)
BY_SUFFIX = {
    ".json": ON_JSON, ".jsonl": ON_JSON, ".toml": ON_TOML, ".sqlite": ON_SQLITE, ".db": ON_SQLITE,
    ".csv": ON_CSV,
}  # fmt: skip


def mutations(path: Path) -> tuple[Mutation, ...]:
    """The ways to damage a file of this kind; those that know its form come twice as often."""
    return (*ON_BYTES, *BY_SUFFIX[path.suffix], *BY_SUFFIX[path.suffix])


def _edit(path: Path, draws: random.Random, change: Callable[[Any, Any], None]) -> None:
    """Change one place of a JSON document, or of one line of a file of them."""
    if path.suffix == ".json":
        document = json.loads(path.read_text())
        change(*draws.choice(_spots(document)))
        path.write_text(json.dumps(document))
        return
    lines = path.read_text().splitlines()
    rare = draws.sample(range(len(lines)), min(8, len(lines)))
    place = min(rare, key=lambda number: _copies(lines, number))
    document = json.loads(lines[place])
    change(*draws.choice(_spots(document)))
    lines[place] = json.dumps(document)
    path.write_text("\n".join(lines) + "\n")


def _copies(lines: list[str], number: int) -> int:
    """How many lines are of the same kind: rows of steps are most of an event file."""
    return sum(line[:16] == lines[number][:16] for line in lines)


def _spots(value: Any) -> list[tuple[Any, Any]]:
    """Every place below a JSON value: its container and its key there."""
    if not isinstance(value, (dict, list)):
        return []
    found: list[tuple[Any, Any]] = []
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        found.append((value, key))
        found += _spots(value[key])
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _set(parent: Any, key: Any, value: Any) -> None:
    parent[key] = value


def copied(folder: Path, into: Path) -> Path:
    """A copy of a folder, to damage."""
    return Path(shutil.copytree(folder, into, symlinks=True))
