"""Who calls is told by the module's name for gpurun and knobs, by the file for everybody else."""

from __future__ import annotations

import os
import sys
from types import FrameType

import pytest

from gpurun.knobs import callers


def frame_of(module: str | None, file: str) -> FrameType:
    """The frame of a call in a module of that name, from that file."""
    names = {"_getframe": sys._getframe, **({} if module is None else {"__name__": module})}
    exec(compile("frame = _getframe()", file, "exec"), names)
    frame = names["frame"]
    assert isinstance(frame, FrameType)
    return frame


LIBRARY = os.path.dirname(os.__file__)


@pytest.mark.parametrize(
    ("module", "file", "ours", "users"),
    [
        ("__main__", "/home/me/train.py", False, True),
        (None, "<string>", False, True),
        ("trainer", "/home/me/gpurun/runtime/trainer.py", False, True),
        ("gpurun_tools", "/home/me/gpurun_tools.py", False, True),
        ("accelerate", "/venv/lib/python3/site-packages/accelerate/__init__.py", False, False),
        ("numpy", "/usr/lib/python3/dist-packages/numpy/__init__.py", False, False),
        ("contextlib", f"{LIBRARY}/contextlib.py", False, False),
        ("importlib._bootstrap", "<frozen importlib._bootstrap>", False, False),
        ("gpurun.runtime.core.device_clock", "/src/gpurun/runtime/core/x.py", True, False),
        ("gpurun.knobs.compile", "/src/gpurun/knobs/compile.py", True, False),
        ("gpurun_user_knobs.mine", "/home/me/knobs/mine.py", True, False),
    ],
)
def test_who_calls(module: str | None, file: str, ours: bool, users: bool) -> None:
    frame = frame_of(module, file)
    assert (callers.is_ours(frame), callers.is_users(frame)) == (ours, users)
