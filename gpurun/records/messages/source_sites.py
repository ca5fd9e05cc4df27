"""Places in the user's source at which `gpurun eject` can write a setting down."""

from __future__ import annotations

import enum
from typing import ClassVar

from gpurun.records.record import record


class SiteKind(enum.Enum):
    """`LOADER`, `OPTIMIZER`: a call that builds one. `ROOT_CALL`: a call of a root module.
    `SYNCHRONIZE`: a call of `torch.cuda.synchronize`. `MODEL`: a call, somewhere in a statement,
    after which a name of that scope holds the root module and its optimizer is built."""

    LOADER = "loader"
    OPTIMIZER = "optimizer"
    MODEL = "model"
    ROOT_CALL = "root_call"
    SYNCHRONIZE = "synchronize"


@record
class SourceSiteEvent:
    """A call in the user's source, with the position that python gives it.

    `file`: its path from the process's working folder. `line` counts from 1. `end_line`, and
    `column` and `end_column` in bytes of UTF-8 from 0, are None where python does not know them
    (before 3.11). `name`: the key of a loader (`file:line#n`), the class of an optimizer, the
    expression that holds the model (`model`, `self.net`), else "". `root`: which root module that
    is, from 0; its better places come first.
    """

    kind: ClassVar[str] = "source_site"
    what: SiteKind
    file: str
    line: int
    end_line: int | None
    column: int | None
    end_column: int | None
    name: str = ""
    root: int = 0
