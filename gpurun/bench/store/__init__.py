"""Where benchmarks are kept: JSON files, and one table of a database as their index.

SQLAlchemy is imported when a store is opened, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpurun.bench.store.benchmark_store import BenchmarkStore


def open_store(
    home: Path, url: str | None = None, *, notice: Callable[[str], None]
) -> BenchmarkStore:
    """The store in `home` (`.gpurun/`), or at `url`: postgresql://user@host/database, sqlite:///file.

    The JSON files are beside an SQLite file, else in `home`. This checks only the URL and its
    driver (`GpurunError`); the first query opens the database. `notice` takes lines for the user.
    """
    from gpurun.bench.store.benchmark_store import BenchmarkStore
    from gpurun.bench.store.database import database_at

    return BenchmarkStore(database_at(home, url), notice)
