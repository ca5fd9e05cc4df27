"""A trial that cannot start says whether its program or its sandbox was at fault."""

from __future__ import annotations

from pathlib import Path

from tests.integration.isolation_launcher import ME
from tests.integration.launched import DEADLINE_SECONDS

SLOW_READER = """
import os, sys, time
from pathlib import Path
from gpurun.errors import GpurunError
from gpurun.isolation.isolation_mode import Mode
from gpurun.isolation.sandbox import LaunchSpec, Sandbox
awaits = Sandbox._await_start
def late(sandbox, report):
    time.sleep(0.5)  # by then the sandbox has said all that it will say
    awaits(sandbox, report)
Sandbox._await_start = late
cwd = Path(sys.argv[1])
try:
    Sandbox(LaunchSpec(("./nowhere",), dict(os.environ), cwd, (), (), Mode.OVERLAY, cwd / "log"))
except GpurunError as error:
    print(error.what)
"""


def test_a_missing_program_is_told_though_the_launcher_is_slow_to_listen(open_path: Path) -> None:
    cwd = open_path / "project"
    cwd.mkdir()
    printed, _ = ME.start(SLOW_READER, str(cwd)).communicate(timeout=DEADLINE_SECONDS)
    assert printed.startswith("the trial's program could not be started: ./nowhere: No such file")
