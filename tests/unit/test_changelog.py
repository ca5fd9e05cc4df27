"""The changelog does not call unmeasured or unbuilt what is there."""

from __future__ import annotations

import re

from gpurun.commands.bench import BELOW
from gpurun.knobs import all_knobs
from tests.conftest import REPOSITORY

ENTRIES = [
    " ".join(entry.split())
    for entry in re.split(r"^\* ", (REPOSITORY / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
]
GUIDE = (REPOSITORY / "docs" / "OPTIMIZATION_GUIDE.md").read_text()


def test_no_knob_of_the_guides_gpu_table_is_said_not_to_have_run() -> None:
    table = GUIDE.split("settings chosen |")[1].split("\n\n")[0]
    chosen = [knob.name for knob in all_knobs() if re.search(rf"\b{knob.name}\b", table)]
    assert "async_copies" in chosen
    unrun = [entry for entry in ENTRIES if "not run on a GPU yet" in entry]
    assert [name for name in chosen for entry in unrun if f"`{name}`" in entry] == []


def test_no_command_that_is_there_is_said_to_come() -> None:
    coming = [entry for entry in ENTRIES if "yet to come" in entry]
    assert [name for name in BELOW for entry in coming if name in entry] == []
