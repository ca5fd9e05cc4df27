"""Whose code a frame runs: the user's own, a library's, or gpurun's and its knobs'."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import FrameType

from gpurun.knobs import USER_PACKAGE

OURS = ("gpurun.runtime.", "gpurun.knobs.", "gpurun.records.", f"{USER_PACKAGE}.")
"""Packages whose modules act for a knob; the last is the one of users' own knobs."""
STANDARD = os.path.dirname(os.__file__) + os.sep


def is_ours(frame: FrameType) -> bool:
    """True if gpurun or a knob calls, by the module's name: its place proves nothing."""
    module = frame.f_globals.get("__name__")
    return isinstance(module, str) and f"{module}.".startswith(OURS)


def is_users(frame: FrameType) -> bool:
    """True if the user's own source calls: not an installed package's, python's or ours."""
    return is_users_file(frame.f_code.co_filename) and not is_ours(frame)


def is_standard(frame: FrameType) -> bool:
    """True if the standard library calls."""
    file = frame.f_code.co_filename
    return file.startswith((STANDARD, "<frozen")) and not _is_installed(file)


def caller_past(frame: FrameType | None, passed: Callable[[FrameType], bool]) -> FrameType | None:
    """The first frame, from this one outward, that is not passed over; None where all are."""
    while frame is not None and passed(frame):
        frame = frame.f_back
    return frame


def users_line(frame: FrameType | None) -> str:
    """The innermost line of the user's own code that runs in a frame; "" for none."""
    found = caller_past(frame, lambda f: not is_users(f) or f.f_code.co_filename.startswith("<"))
    return f"{os.path.basename(found.f_code.co_filename)}:{found.f_lineno}" if found else ""


def is_users_file(file: str) -> bool:
    """True of a file that neither python nor a package brought; it may still be one of ours."""
    return not (_is_installed(file) or file.startswith((STANDARD, "<frozen")))


def _is_installed(file: str) -> bool:
    folders = file.split(os.sep)
    return "site-packages" in folders or "dist-packages" in folders
