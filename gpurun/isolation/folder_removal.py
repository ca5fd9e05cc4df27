"""Removes a folder even where a script or an overlay took permissions away."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def discard(folder: Path) -> None:
    """Remove all of it, unreadable folders included."""
    for place, names, _ in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            if not os.path.islink(path):
                try:
                    os.chmod(path, 0o700)
                except OSError:
                    pass
    shutil.rmtree(folder, ignore_errors=True)
