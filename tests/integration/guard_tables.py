"""What `scripts/guard_error_rates.py` finds, as a table."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.conftest import REPOSITORY


def guard_table(folder: Path, *words: str) -> list[dict[str, Any]]:
    """Judge each case once, in a process of its own: only one that has imported torch and not used
    it may be forked, and pytest has used it.
    """
    path = folder / "table.json"
    script = REPOSITORY / "scripts" / "guard_error_rates.py"
    done = subprocess.run(
        [sys.executable, str(script), "--repeats", "1", "--json", str(path), *words],
        capture_output=True,
        timeout=800,
        check=False,
    )
    assert path.exists(), done.stderr.decode()
    found: list[dict[str, Any]] = json.loads(path.read_text())
    return found
