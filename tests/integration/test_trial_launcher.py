"""The launcher and real processes: what an outcome says of every end, and pairs of two trees."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpurun.arguments.options import Target, TargetKind
from gpurun.isolation.available_modes import require
from gpurun.isolation.isolation_mode import Mode
from gpurun.pairs.live_launches import LiveLaunches
from gpurun.records.failure import FailureKind
from gpurun.records.spec import Setting, TrialSpec
from gpurun.trials.launch_request import LaunchRequest, Ranks
from gpurun.trials.outcome import Outcome
from gpurun.trials.stop_rules import WARMUP_STEPS, first_rule
from gpurun.trials.trial_launcher import TrialLauncher

pytestmark = pytest.mark.forked

# Plain gradient descent: torch's optimizers take seconds to import.
TRAINS = """
import os, sys, time, torch

model = torch.nn.Linear(8, 2)

def step(seconds=0.002):
    time.sleep(seconds)
    model(torch.randn(4, 8)).square().mean().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.01 * parameter.grad
            parameter.grad = None
"""
FOR_LONG = TRAINS + "while True: step(SECONDS)\n"
TELLS_TIMES = (
    "import time; print('begins', time.monotonic(), flush=True)\n"
    + TRAINS
    + "for done in range(1, 10**6):\n    step()\n    print(done, time.monotonic(), flush=True)\n"
)

Make = Callable[..., LaunchRequest]


@pytest.fixture
def make(tmp_path: Path, clean_environment: dict[str, str]) -> Make:
    """A request for a script of this text, in a tree of its own."""

    def request(name: str, text: str, **more: object) -> LaunchRequest:
        tree = tmp_path / name
        tree.mkdir(exist_ok=True)
        (tree / "train.py").write_text(text)
        return LaunchRequest(
            name=name,
            run_dir=tmp_path / "runs" / name,
            target=Target(TargetKind.SCRIPT, "train.py"),
            cwd=tree,
            environment=clean_environment,
            trial=TrialSpec(stop=first_rule(20)),
            shared=name,
            **more,  # type: ignore[arg-type]
        )

    return request


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[TrialLauncher]:
    mode, _ = require(tmp_path, in_place=False)
    launcher = TrialLauncher(tmp_path / "launches", mode)
    yield launcher
    launcher.close()


@pytest.fixture
def isolated(launcher: TrialLauncher) -> LiveLaunches:
    """Of a launcher whose trials can be live pairs."""
    if launcher.mode is Mode.IN_PLACE:
        pytest.skip("trials work on the real files")
    return LiveLaunches(launcher)


def kind(outcome: Outcome) -> FailureKind | None:
    return None if outcome.failure is None else outcome.failure.kind


@pytest.mark.parametrize(
    ("text", "expected", "status", "words"),
    [
        (TRAINS + "while True: step()", None, "stopped", ""),
        pytest.param(
            TRAINS + "[step() for _ in range(15)]", None, "completed", "", marks=pytest.mark.slow
        ),
        pytest.param(
            TRAINS + "step(); sys.exit(3)", FailureKind.EXIT_CODE, "failed", "exit code 3",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            TRAINS + "print('RuntimeError', flush=True); os.kill(os.getpid(), 15)",
            FailureKind.SIGNAL, "killed", "RuntimeError", marks=pytest.mark.slow,
        ),
        (TRAINS + "raise KeyError('lr')", FailureKind.EXCEPTION, "failed", "KeyError: 'lr'"),
        pytest.param(
            TRAINS + "raise torch.OutOfMemoryError('tried 2 GiB')",
            FailureKind.OUT_OF_MEMORY, "oom", "tried 2 GiB", marks=pytest.mark.slow,
        ),
        pytest.param(
            TRAINS + "step()", FailureKind.TOO_FEW_STEPS, "completed", "after 1 training step,",
            marks=pytest.mark.slow,
        ),
        ("input('go? ')", FailureKind.NO_INPUT, "failed", "a trial has no standard input"),
        ("import pickle; input = b''; pickle.loads(input)",
         FailureKind.EXCEPTION, "failed", "EOFError"),
        pytest.param(
            "print(1)", FailureKind.TOO_FEW_STEPS, "completed", "imports no torch",
            marks=pytest.mark.forked(False),  # a fork has imported it
        ),
    ],
)  # fmt: skip
def test_an_outcome_names_how_the_script_ended(
    make: Make,
    launcher: TrialLauncher,
    text: str,
    expected: FailureKind | None,
    status: str,
    words: str,
) -> None:
    outcome = launcher.run(make("one", text))
    assert (kind(outcome), outcome.status) == (expected, status)
    assert words in ("" if outcome.failure is None else outcome.failure.text)
    assert (outcome.result.measured_steps > 0) == (expected is None)


def test_a_launch_that_is_silent_or_takes_too_long_is_given_up(
    make: Make, launcher: TrialLauncher
) -> None:
    silent = launcher.run(make("silent", "import time; time.sleep(600)", patience_seconds=1.0))
    assert (kind(silent), silent.exit_code) == (FailureKind.HUNG, None)
    printing = "import time\nwhile True: print(1, flush=True); time.sleep(0.1)"
    long = launcher.run(make("long", printing, patience_seconds=60.0, limit_seconds=2.0))
    assert (kind(long), long.status) == (FailureKind.OUT_OF_TIME, "timeout")


def test_a_knob_that_cannot_be_applied_is_named(make: Make, launcher: TrialLauncher) -> None:
    knob = Path(make("one", TRAINS + "while True: step()").cwd / "broken.py")
    knob.write_text(BROKEN)
    request = make(
        "one",
        TRAINS + "while True: step()",
        settings=(Setting("broken", 1),),
        knob_paths=(str(knob),),
    )
    outcome = launcher.run(request)
    assert outcome.failure is not None
    assert (outcome.failure.kind, outcome.failure.knob) == (FailureKind.KNOB_FAILED, "broken")
    assert outcome.status == "skipped"


BROKEN = '''
from gpurun.knobs.api import Effect, Knob

class Broken(Knob):
    """It cannot be applied."""

    name = "broken"
    effect = Effect.PIPELINE

    def candidates(self, facts):
        return [1]

    def apply(self, value, hooks):
        raise ValueError("no such thing")
'''


@pytest.mark.slow  # quick twin: test_isolation_writes.py
def test_what_a_launch_wrote_before_its_first_step_is_there_for_those_that_share_it(
    make: Make, launcher: TrialLauncher
) -> None:
    if launcher.mode is Mode.IN_PLACE:
        pytest.skip("nothing is kept where trials work on the real files")
    text = TRAINS + "print('there', os.path.exists('data'))\nopen('data', 'w').write('x')\n"
    text += "while True: step()"
    first = make("one", text, keep_layer=True)
    launcher.run(first)
    assert launcher.has_layer("one")
    assert not (first.cwd / "data").exists()
    later = replace(first, run_dir=first.run_dir.with_name("later"), keep_layer=False)
    launcher.run(later)
    assert "there True" in (later.run_dir / "output.log").read_text()
    launcher.drop_layer("one")
    again = replace(later, run_dir=first.run_dir.with_name("again"))
    launcher.run(again)
    assert "there False" in (again.run_dir / "output.log").read_text()


@pytest.mark.slow  # quick twin: test_bench_live.py
def test_a_pair_of_two_trees_shows_which_is_slower(make: Make, isolated: LiveLaunches) -> None:
    first = make("first", FOR_LONG.replace("SECONDS", "0.004"))
    second = make("second", FOR_LONG.replace("SECONDS", "0.012"))
    pair = isolated.run_pair(first, second)
    assert pair.failure == ""
    assert pair.ratio is not None
    assert 1.5 < math.exp(pair.ratio.log) < 4.0
    assert pair.first is not None
    assert pair.second is not None
    assert [pair.first.status, pair.second.status] == ["stopped", "stopped"]
    assert pair.first.in_turns
    assert pair.second.in_turns
    assert pair.first.run_dir == first.run_dir


@pytest.mark.slow  # quick twin: the reference that warms up, in test_live_reference.py
@pytest.mark.forked(False)  # the first fork would take its steps before the second begins
def test_sides_start_together_and_warm_up_one_after_the_other_without_a_gpu(
    make: Make, isolated: LiveLaunches
) -> None:
    first, second = make("first", TELLS_TIMES), make("second", TELLS_TIMES)
    assert isolated.run_pair(first, second).ratio is not None
    logs = [(side.run_dir / "output.log").read_text() for side in (first, second)]
    times = [dict(line.split() for line in log.splitlines()) for log in logs]
    ready = str(WARMUP_STEPS - 1)  # it is parked at the end of its next step, before it prints
    assert float(times[1]["begins"]) < float(times[0]["1"])
    assert float(times[0][ready]) < float(times[1]["2"])


@pytest.mark.slow  # quick twin: unit/test_pairs_turn_ratio.py
def test_a_training_that_ends_in_its_turns_is_still_compared(
    make: Make, isolated: LiveLaunches
) -> None:
    evaluates = "\nkept = torch.ones(100_000_000)"  # 400 MB, after the last turn
    for steps in (150, 250, 350, 500, 700):  # the first may end before there are enough turns
        unsteady = f"for done in range({steps}): step(0.002 if done // 8 % 3 else 0.014)"
        first = make(f"first{steps}", FOR_LONG.replace("SECONDS", "0.006"))
        pair = isolated.run_pair(first, make(f"second{steps}", TRAINS + unsteady + evaluates))
        if not pair.failure and pair.second is not None and pair.second.status == "completed":
            break
    assert pair.failure == ""
    assert pair.ratio is not None
    assert pair.first is not None
    assert pair.second is not None
    assert [pair.first.status, pair.second.status] == ["stopped", "completed"]
    peaks = [side.result.peak_memory_bytes or 0 for side in (pair.first, pair.second)]
    assert 0 < peaks[1] < peaks[0] + 100e6, "it has none of what follows"


@pytest.mark.slow  # quick twin: test_live_faults.py
def test_a_side_that_fails_names_its_cause_and_ends_the_other(
    make: Make, isolated: LiveLaunches
) -> None:
    first = make("first", FOR_LONG.replace("SECONDS", "0.004"))
    pair = isolated.run_pair(first, make("second", TRAINS + "step(); raise KeyError('lr')"))
    assert pair.ratio is None
    assert pair.failure.startswith("second ended with exit code 1")
    assert pair.first is not None
    assert pair.second is not None
    assert kind(pair.first) is FailureKind.PARTNER_ENDED
    assert kind(pair.second) is FailureKind.EXCEPTION


def test_what_cannot_be_live_says_so_and_launches_nothing(make: Make, tmp_path: Path) -> None:
    live = LiveLaunches(TrialLauncher(tmp_path / "launches", Mode.IN_PLACE))
    first, second = make("first", TRAINS), make("second", TRAINS)
    pair = live.run_pair(first, second)
    assert pair.failure == "trials work on the real files"
    assert (pair.first, pair.second) == (None, None)
    assert not first.run_dir.exists()
    assert live.in_turn_reason(ranks=True) == "the script runs in several ranks"


RANKS = """
import os
import torch.distributed
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
torch.distributed.barrier()
"""
TWO = ("--standalone", "--nproc-per-node=2")


@pytest.mark.slow  # quick twin: test_runtime_trial.py
def test_ranks_run_on_the_agent_and_all_must_finish_where_that_is_asked_for(
    make: Make, launcher: TrialLauncher
) -> None:
    done = launcher.run(
        make("both", TRAINS + RANKS + "while True: step(0.02)", ranks=Ranks(TWO, to_finish=2))
    )
    assert (kind(done), done.result.ranks) == (None, 2)
    code = "sys.exit(3) if rank else None\nwhile True: step(0.2)"
    failed = launcher.run(make("one", TRAINS + RANKS + code, ranks=Ranks(TWO, to_finish=2)))
    assert kind(failed) is FailureKind.EXIT_CODE
