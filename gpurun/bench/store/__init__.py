"""Where benchmarks are kept. SQLAlchemy is imported when a store is opened, and nowhere else.

store = open_store(find_home(Path.cwd()), url=None, notice=print)
store.add(record)
store.query("train", record.fingerprint.key, "main", limit=10)
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpurun.bench.store.benchmark_store import BenchmarkStore

PATIENCE_SECONDS = 30.0

Notice = Callable[[str], None]
"""Tells the user one line that is no error."""


def open_store(
    home: Path, url: str | None = None, *, notice: Notice, patience: float = PATIENCE_SECONDS
) -> BenchmarkStore:
    """The store in `home` (`.gpurun/`), or at `url`: postgresql://user@host/database, sqlite:///file.

    The JSON files of records are beside an SQLite file, else in `home`. This checks only the URL
    and its driver (`GpurunError`). The first query opens the database, and waits for a lock there
    as long as `patience` (seconds).
    """
    from gpurun.bench.store.benchmark_store import BenchmarkStore
    from gpurun.bench.store.database import database_at
    from gpurun.bench.store.record_files import RecordFiles
    from gpurun.bench.store.sqlite import SqliteDatabase

    database = database_at(home, url, patience)
    beside = database.path.parent if isinstance(database, SqliteDatabase) else home
    return BenchmarkStore(database, RecordFiles(beside), notice)
