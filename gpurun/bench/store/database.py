"""The database of a store by its URL: SQLite or PostgreSQL. No message repeats a password."""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import NullPool

from gpurun.errors import GpurunError

T = TypeVar("T")
Work = Callable[[sa.Connection], T]

PATIENCE_SECONDS = 15.0
"""How long the database waits for a lock, and we for a server (unless the URL has
`?connect_timeout=`): longer than any writer of ours needs."""
READ_SECONDS = 60.0
"""How long SQLite may take for one transaction: pages of a damaged file may lead in circles."""
PROGRESS_STEPS = 100_000
"""Steps of SQLite's machine between two looks at the clock."""
APPLICATION_ID = 0x67707275
"""The number ("gpru") in an SQLite file's head by which it is known as gpurun's."""
MAGIC, HEAD_BYTES, APPLICATION_ID_AT = b"SQLite format 3\0", 100, slice(68, 72)
"""The beginning of an SQLite file, and the place of its number in its head."""
JOURNAL = bytes.fromhex("d9d505f920a163d7")
"""The beginning of a rollback journal, and its end if it names another journal."""
FORMS = (
    "write postgresql://user@host:5432/database (an @ in a password as %40) or sqlite:///file.db"
)
MOVE_AWAY = (
    "move it away (the next call makes a new index from the JSON files beside it), name another"
    " with --store or --out, or make room and grant access there"
)
SHARED_BY_ALL = stat.S_ISVTX | stat.S_IWOTH
"""The mode of a folder like /tmp, of users that do not trust each other. Whoever may write in
another folder may replace the store itself."""
CLOSE_FOLDER = "name a folder below it, or another one, with --store or --out"
MEND = "mend that there (server, user, password, rights, table), or name another --store"


@dataclass(frozen=True)
class Database:
    """A database by its engine, which keeps no connection open.

    `name` is for messages and holds no password. `home`: where the JSON files of its records are.
    `cure`: what to do where the database refuses.
    """

    name: str
    home: Path
    engine: sa.Engine
    cure: str
    secrets: tuple[str, ...] = ()

    def run(self, work: Work[T]) -> T:
        """Do `work` in a transaction of its own; `GpurunError` where the database refuses."""
        try:
            with self.engine.begin() as connection:
                return work(connection)
        except DBAPIError as error:
            said = " ".join(str(error.orig).split())
        except ValueError as error:
            said = str(error)
        for secret in self.secrets:
            said = said.replace(secret, "***")
        if "is locked" in said:
            said = f"locked by another process for more than {PATIENCE_SECONDS:g} s"
        if said == "interrupted":
            said = f"reading it took longer than {READ_SECONDS:g} s"
        raise GpurunError(f"{self.name}: {said}", self.cure)


def database_at(home: Path, url: str | None) -> Database:
    """The database of this URL; by default an SQLite file in `home`. Nothing is opened yet.

    A relative file of `sqlite:///` is taken from the current folder. `GpurunError` for a URL that
    cannot be read: it may hold a password, so that no message repeats it.
    """
    if url is None:
        return _sqlite(home / "bench.db")
    try:
        parsed = sa.make_url(url)
        one_host = url.count("@") <= 1  # else some password would pass for host, path or query
        if one_host and parsed.drivername in ("postgresql", "postgres", "postgresql+psycopg"):
            return _postgres(parsed, home)
        if parsed.drivername == "sqlite" and parsed.database and not parsed.host:
            return _sqlite(Path(parsed.database).absolute())
    except (ArgumentError, ValueError):
        pass
    raise GpurunError("the URL of --store names no database that gpurun can use", FORMS)


def _postgres(url: sa.URL, home: Path) -> Database:
    words = (url.password, url.query.get("password"), url.query.get("sslpassword"))
    secrets = tuple(str(word) for word in words if word)
    plain = sa.URL.create("postgresql", url.username, None, url.host, url.port, url.database)
    timeout = {"connect_timeout": url.query.get("connect_timeout", round(PATIENCE_SECONDS))}
    driver = url.set(drivername="postgresql+psycopg")
    try:
        engine = sa.create_engine(driver, poolclass=NullPool, connect_args=timeout)
    except ImportError as error:
        what = f"a store in PostgreSQL needs the driver psycopg 3: {' '.join(str(error).split())}"
        raise GpurunError(what, 'pip install "gpurun-torch[postgres]"') from None
    wait = f"SET LOCAL lock_timeout = {PATIENCE_SECONDS * 1000:.0f}"
    sa.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(wait))
    return Database(plain.render_as_string(), home, engine, MEND, secrets)


def _sqlite(path: Path) -> Database:
    """The index in this file, with SQLite's usual journal: nothing stays beside the file."""
    place = f"file:{quote(os.fsencode(path))}?mode=rw"

    def connect() -> sqlite3.Connection:
        _make_or_check(path)
        # a writer asks for its turn at once: one that read before could no longer wait for it
        made = sqlite3.connect(place, PATIENCE_SECONDS, isolation_level="IMMEDIATE", uri=True)
        end = time.monotonic() + READ_SECONDS
        made.set_progress_handler(lambda: time.monotonic() > end, PROGRESS_STEPS)
        return made

    engine = sa.create_engine("sqlite://", creator=connect, poolclass=NullPool)
    return Database(os.fspath(path), path.parent, engine, MOVE_AWAY)


def _is_ours(journal: str) -> bool:
    """True for no journal, or one that a writer of ours has or left: a plain file with one name,
    that names no other file. SQLite deletes what it names
    (sqlite.org/fileformat2.html#the_rollback_journal).
    """
    try:
        opened = os.open(journal, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    with open(opened, "rb") as file:
        seen = os.fstat(opened)
        if not stat.S_ISREG(seen.st_mode) or seen.st_nlink > 1:
            return False
        head = file.read(len(JOURNAL))
        file.seek(max(len(JOURNAL), seen.st_size - len(JOURNAL)))
        names_another = file.read() == JOURNAL
        return head in (b"", bytes(len(JOURNAL)), JOURNAL) and not names_another


def _make_or_check(path: Path) -> None:
    """Make an empty file for its owner alone; `GpurunError` if there is one that is not ours.

    SQLite alone may change a file that it opens, so the head is read before: what SQLite reads as
    `immutable` while another process writes may be no database. A log beside it (`-wal`, or a
    `-journal` that is not ours) is another's: SQLite would write it into the file, or remove it.
    """
    flags = os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = path.parent.stat()
    except OSError as error:
        raise GpurunError(f"{path} cannot be opened: {error.strerror}", MOVE_AWAY) from None
    if folder.st_mode & SHARED_BY_ALL == SHARED_BY_ALL:
        fault = f"any user may write to {path.parent}: SQLite would trust their files beside"
        raise GpurunError(f"{fault} {path.name}", CLOSE_FOLDER)
    logs = {"-wal": os.path.lexists(f"{path}-wal"), "-journal": not _is_ours(f"{path}-journal")}
    for end in (end for end, is_foreign in logs.items() if is_foreign):
        what = f"{path} and its log ({end}) are not of this gpurun; they stay as they are"
        raise GpurunError(what, MOVE_AWAY)
    try:
        opened = os.open(path, flags, 0o600)
        with open(opened, "rb") as file:
            seen = os.fstat(opened)
            is_plain = stat.S_ISREG(seen.st_mode)
            head = file.read(HEAD_BYTES) if is_plain else MAGIC
    except OSError as error:
        raise GpurunError(f"{path} cannot be opened: {error.strerror}", MOVE_AWAY) from None
    number = int.from_bytes(head[APPLICATION_ID_AT], "big")
    is_new = not head and seen.st_nlink == 1  # a second name may be of a file of the user's
    if not is_new and not (head.startswith(MAGIC) and number == APPLICATION_ID):
        fault = "is no index of benchmarks that gpurun made; it stays as it is"
        raise GpurunError(f"{path} {fault}", MOVE_AWAY)
