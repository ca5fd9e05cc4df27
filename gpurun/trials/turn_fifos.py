"""The FIFOs by which a launch that takes turns hears its orders and answers them."""

from __future__ import annotations

import os
from pathlib import Path

from gpurun.records.messages.turns import ANSWERS, ORDERS


def fifo_obstacle(folder: Path) -> str:
    """Why there can be no FIFO in this folder, as on some network file systems; "" if it can."""
    fifo = folder / "fifo"
    try:
        os.mkfifo(fifo)
    except OSError:
        return "the file system of the run folder has no FIFOs"
    fifo.unlink()
    return ""


def make_fifos(control: Path) -> None:
    """The two FIFOs of a side, made before it is launched."""
    control.mkdir(parents=True, exist_ok=True)
    for name in (ORDERS, ANSWERS):
        os.mkfifo(control / name)
