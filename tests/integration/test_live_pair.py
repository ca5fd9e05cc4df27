"""Live pairs of real processes: turns, freezing, and what happens when a side or we are gone."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from itertools import chain, repeat
from pathlib import Path

import pytest

from gpurun.measure import summarise_run
from gpurun.pairs.side import SideEnded, await_both, tree_below
from gpurun.pairs.turn_taking import take_turns
from tests.conftest import REPOSITORY
from tests.integration.launched import alive, wait_for
from tests.integration.live_sides import Sides, state

pytestmark = pytest.mark.forked


def test_the_slower_side_takes_as_much_time_and_fewer_steps(sides: Sides) -> None:
    first, second = sides.launch("first", 0.002), sides.launch("second", 0.004)
    await_both((first, second))
    rounds = take_turns((first, second), random.Random(0), lambda done: len(done) == 20)
    steps = [sum(r.first.steps for r in rounds), sum(r.second.steps for r in rounds)]
    assert 1.2 < steps[0] / steps[1] < 3.0
    ratios = sorted(r.second.step_seconds / r.first.step_seconds for r in rounds)
    assert 1.3 < ratios[10] < 2.2  # the sleep doubles, and both have a step's own work
    counted = [r.first.all_steps for r in rounds]
    assert counted == sorted(set(counted))
    assert counted[-1] - counted[0] >= sum(r.first.steps for r in rounds[1:])
    assert all(r.first.peak_bytes > 1 << 20 for r in rounds)


def test_a_side_stands_still_with_its_workers_outside_its_turns(sides: Sides) -> None:
    side = sides.launch("only", workers=2)
    side.await_ready()
    side.freeze()
    main = sides.sandboxes[0].pid
    everyone = [main, *tree_below(main)]
    assert len(everyone) >= 3
    assert wait_for(lambda: all(state(pid) == "T" for pid in everyone), 10)
    side.end()
    assert wait_for(lambda: sides.sandboxes[0].poll() == 0)


EPOCHS = """
import os, signal, time, torch
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(96, 8)), batch_size=8)
for epoch in range(8):
    for (x,) in loader:
        time.sleep(0.002)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
END
"""


@pytest.mark.parametrize(
    ("end", "first_turn_seconds"),
    [
        pytest.param("", 0.1, id="comes to its end"),
        pytest.param("", 1000, id="comes to its end in its first turn", marks=pytest.mark.slow),
        pytest.param(
            "time.sleep(1); os.kill(os.getpid(), signal.SIGKILL)",
            0.1,
            id="killed",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_no_figure_of_a_side_that_ends_in_its_turns_holds_time_in_which_it_was_frozen(
    sides: Sides, tmp_path: Path, end: str, first_turn_seconds: float
) -> None:
    (tmp_path / "epochs.py").write_text(EPOCHS.replace("END", end))
    side, other = sides.run("short", "epochs.py"), sides.launch("long", 0.03)
    await_both((side, other))
    time.sleep(1)
    seconds = chain([first_turn_seconds], repeat(0.02))
    with pytest.raises(SideEnded):
        all(side.take(int(s * 1e9), other) and other.take(300_000_000, side) for s in seconds)
    result = summarise_run(tmp_path / "short", exit_code=0, wall_seconds=1.0)
    step = result.step_time_ms
    assert step is not None
    assert result.measured_steps >= 5
    assert step.mean < 4 * step.p50, "a turn of the other side takes as long as 100 steps"
    assert result.epoch_seconds is None or result.epoch_seconds < 4 * 12 * step.p50 / 1000
    assert result.startup_seconds is not None
    assert result.seconds_to_first_step is not None
    assert result.startup_seconds < result.seconds_to_first_step + 0.5, "without the second above"


HOLDER = """
import os, random, sys, time
sys.path.insert(0, {repository!r})
from contextlib import ExitStack
from pathlib import Path
from tests.integration.live_sides import Sides
from gpurun.pairs.side import tree_below
from gpurun.pairs.side import await_both
from gpurun.pairs.turn_taking import take_turns
with ExitStack() as stack:
    sides = Sides(Path(sys.argv[1]), dict(os.environ), stack)
    pair = tuple(sides.launch(name, workers=1) for name in ("first", "second"))
    await_both(pair)
    pids = [pid for sandbox in sides.sandboxes for pid in (sandbox.pid, *tree_below(sandbox.pid))]
    print(*pids, flush=True)
    take_turns(pair, random.Random(0), lambda done: False)
"""


def test_a_launcher_that_is_killed_leaves_nothing_frozen(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    code = HOLDER.format(repository=str(REPOSITORY))
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        env=clean_environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as launcher:
        assert launcher.stdout is not None
        pids = [int(word) for word in launcher.stdout.readline().split()]
        assert len(pids) >= 4
        time.sleep(random.uniform(0, 0.5))
        launcher.kill()
    try:
        assert wait_for(lambda: not any(alive(pid) for pid in pids), 60)
    finally:
        for pid in pids:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
