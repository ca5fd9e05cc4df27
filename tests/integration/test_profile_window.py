"""A profiled script runs as without gpurun; some of its steady steps are recorded."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from gpurun.profilers.recorded_profiles import RecordedProfile, recorded_profiles
from gpurun.timeline.model import Phase
from tests.conftest import Gpurun, without_verdict
from tests.once import once

pytestmark = pytest.mark.forked

SLEEPS = """
import sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 4000
    def __getitem__(self, index):
        time.sleep(0.01)  # a slow disk
        return torch.randn(16), index % 2

model = nn.Linear(16, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step, (x, y) in enumerate(DataLoader(Slow(), batch_size=4)):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    AFTER
"""
EXCHANGES = """
import time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1, 200):
    loss = model(torch.randn(4, 16)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    time.sleep(0.02)
    if step == 9 and dist.get_rank() == 1:
        time.sleep(0.5)  # a long step here, and the one after it on the other rank
    optimizer.step()
dist.destroy_process_group()
"""
SLOWER_LATER = """
import time
import torch
from torch import nn

def grows(step):
    time.sleep(0.02 if step > 200 else 0.0)

model = nn.Linear(512, 512)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(420):
    loss = model(torch.randn(256, 512)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    grows(step)
print("trained")
"""
STEPS = ("--steps", "10")
SECRET = "planted-secret"


def script(folder: Path, after: str) -> Path:
    path = folder / "train.py"
    path.write_text(SLEEPS.replace("AFTER", after))
    return path


def recorded(folder: Path) -> RecordedProfile:
    (run_dir,) = (folder / ".gpurun" / "runs").iterdir()
    (found,) = recorded_profiles(run_dir)
    return found


@pytest.fixture
def ended(tmp_path_factory: pytest.TempPathFactory, gpurun: Gpurun) -> tuple[Path, bytes]:
    """A script that ends with exit code 3 after its window: its folder and its output."""

    def make(folder: Path) -> tuple[Path, bytes]:
        script(folder, "if step == 40: print('the end'); sys.exit(3)")
        words = ("profile", *STEPS, "--json", "profile.json", "train.py", "--flag")
        done = gpurun(*words, cwd=folder, env={"WANDB_API_KEY": SECRET})
        assert done.returncode == 3, done.stderr
        assert SECRET.encode() not in done.stderr
        return folder, done.stdout

    return once(tmp_path_factory, "profiled", make)


def test_the_script_keeps_its_output_and_its_exit_code(ended: tuple[Path, bytes]) -> None:
    assert ended[1] == b"the end\n"


def test_the_window_holds_the_steps_that_were_asked_for(ended: tuple[Path, bytes]) -> None:
    found = recorded(ended[0])
    timeline = found.timeline
    assert found.steps == len(timeline.steps or ()) == 10
    assert {"steps", "host", "kineto"} <= set(timeline.sources)
    assert found.failures == ()
    assert timeline.kernels is None  # no device was recorded
    assert found.profiler_seconds > 0


def test_parts_of_the_steps_lie_inside_them_in_order(ended: tuple[Path, bytes]) -> None:
    timeline = recorded(ended[0]).timeline
    assert timeline.steps is not None
    assert timeline.ranges is not None
    for step in timeline.steps:
        inside = [
            each.name
            for each in timeline.ranges
            if step.begin_ns <= each.begin_ns
            and each.end_ns <= step.end_ns
            and each.name in {p.value for p in Phase} - {Phase.STEP.value}
        ]
        assert inside == ["data", "forward", "backward", "optimizer"]


def test_operators_are_on_the_same_clock(ended: tuple[Path, bytes]) -> None:
    timeline = recorded(ended[0]).timeline
    assert timeline.operators is not None
    linear = next(each for each in timeline.operators if each.name == "aten::linear")
    assert linear.calls == 10


def test_the_line_that_sleeps_is_named_and_is_known_to_wait(ended: tuple[Path, bytes]) -> None:
    functions = recorded(ended[0]).timeline.host_functions
    assert functions is not None
    item = next(each for each in functions if each.function.endswith("__getitem__"))
    lines = (ended[0] / "train.py").read_text().splitlines()
    assert "a slow disk" in lines[item.line - 1]
    assert (Path(item.file).name, item.phase, item.users_own) == (
        "train.py",
        Phase.DATA.value,
        True,
    )
    assert item.blocked_seconds is not None
    assert item.blocked_seconds > 0.5 * item.self_seconds > 0


def test_what_profiling_costs_is_measured(ended: tuple[Path, bytes]) -> None:
    assert recorded(ended[0]).overhead_percent is not None


def test_the_document_says_what_was_recorded(ended: tuple[Path, bytes]) -> None:
    document = json.loads((ended[0] / "profile.json").read_text())
    assert document["schema"] == "gpurun/diagnosis@1"
    assert document["steps_profiled"] == 10
    assert isinstance(document["overhead_percent"], float)
    first = document["findings"][0]
    assert first["type"] == "data_loading"
    assert first["location"]["file"].endswith("train.py")


def test_no_value_of_the_environment_is_reported(ended: tuple[Path, bytes]) -> None:
    assert (ended[0] / "profile.json").is_file()
    for path in ended[0].rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path


def test_a_warning_that_torch_gives_of_our_profiler_is_not_the_script_s(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    """torch 2.11 warns at each start that events are cleared."""
    warns = (
        "if step == 0:\n"
        "        import torch.profiler.profiler as module, warnings\n"
        "        prepare = torch.profiler.profile.prepare_trace\n"
        "        def warn(self): module.warn('events are cleared'); prepare(self)\n"
        "        torch.profiler.profile.prepare_trace = warn\n"
        "    if step in (2, 60): warnings.warn('of the script')\n"
        "    if step == 61: module.warn('given again'); sys.exit(4)"
    )
    script(tmp_path, warns)
    done = gpurun("profile", *STEPS, "train.py", cwd=tmp_path)
    assert done.returncode == 4, done.stderr
    assert b"cleared" not in done.stderr
    assert done.stderr.count(b"of the script") == 2  # the warning, and its line of the source
    assert b"given again" in done.stderr
    assert recorded(tmp_path).timeline.operators


def test_a_script_that_raises_in_the_window_keeps_its_traceback(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    script(tmp_path, "if step == 25: raise RuntimeError('out of luck')")
    done = gpurun("profile", "--quiet", "--steps", "60", "train.py", cwd=tmp_path)
    assert done.returncode == 1
    told = without_verdict(done.stderr).decode().splitlines()
    assert told[0] == "Traceback (most recent call last):"
    assert told[-1] == "RuntimeError: out of luck"
    assert "gpurun" not in "".join(told)
    found = recorded(tmp_path)
    assert 0 < found.steps < 26  # of the 60 asked for
    assert found.timeline.operators
    assert found.timeline.notes == ("the window is short: the script ended inside the window",)


@pytest.mark.slow  # quick twin: the script that raises in the window, above
def test_a_call_that_raises_before_the_window_shows_no_frame_of_ours(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    script(tmp_path, "if step == 2: torch.autograd.backward(torch.zeros(1))")
    done = gpurun("profile", "--quiet", "train.py", cwd=tmp_path)
    assert done.returncode == 1
    told = without_verdict(done.stderr).decode()
    assert "RuntimeError: element 0 of tensors does not require grad" in told
    assert "gpurun/" not in told


def test_a_script_that_is_over_before_it_is_steady_is_still_diagnosed(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    script(tmp_path, "if step == 4: break")
    done = gpurun("profile", "train.py", cwd=tmp_path)
    assert done.returncode == 0
    assert b"no step was profiled" in done.stderr


def test_stop_ends_the_script_after_the_window(tmp_path: Path, gpurun: Gpurun) -> None:
    script(tmp_path, "if step > 900: print('never')")
    done = gpurun("profile", *STEPS, "--stop", "train.py", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout == b""
    assert recorded(tmp_path).steps == 10


@pytest.mark.slow  # quick twin: the profiler that runs already, in this file
def test_the_scripts_own_profiler_takes_precedence(tmp_path: Path, gpurun: Gpurun) -> None:
    own = (
        "if step == 18: p = torch.profiler.profile(); p.start()\n"
        "    if step == 20: p.stop(); print(len(p.key_averages()) > 3); break"
    )
    script(tmp_path, own)
    done = gpurun("profile", "--steps", "100", "train.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, b"True\n"), done.stderr
    assert "profiler of its own" in recorded(tmp_path).timeline.notes[0]


def test_a_profiler_that_the_script_runs_already_is_left_alone(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    own = (
        "if step == 2: p = torch.profiler.profile(); p.start()\n"
        "    if step == 30: p.stop(); print(len(p.key_averages()) > 3); break"
    )
    script(tmp_path, own)
    done = gpurun("profile", *STEPS, "train.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, b"True\n"), done.stderr
    found = recorded(tmp_path)
    assert found.steps == 10
    assert found.timeline.operators is None
    assert "kineto" in found.failures[0]


@pytest.mark.slow  # quick twin: test_stop_ends_the_script_after_the_window
def test_a_script_that_trains_in_a_thread_is_left_alive(tmp_path: Path, gpurun: Gpurun) -> None:
    """torch's profiler ends a process whose training thread is not the main one."""
    path = script(tmp_path, "if step == 60: break")
    lines = "".join(f"    {line}\n" for line in path.read_text().splitlines())
    path.write_text(
        f"import threading\ndef train():\n{lines}"
        "thread = threading.Thread(target=train)\nthread.start()\nthread.join()\nprint('trained')\n"
    )
    done = gpurun("profile", *STEPS, "train.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, b"trained\n")
    found = recorded(tmp_path)
    assert found.steps == 10
    assert {"steps", "host"} <= set(found.timeline.sources)
    assert found.failures == ("kineto: the script trains in a thread of its own",)


FORKS = """
    if step == 20:
        import os
        child = os.fork()
        if child == 0:
            before, ones = memory(), torch.ones(3)
            for _ in range(50000):
                ones = ones + 0
            print("child", ones.sum().item(), memory() - before < 20 << 20)
            HOW
    if step == 30:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print("code", code, flush=True)
    if step == 45: sys.exit(0)
"""
MEMORY = """
def memory():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
"""


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("sys.exit(3)", 3),
        pytest.param("raise ValueError", 1, marks=pytest.mark.slow),
        pytest.param("sys.stdout.flush(); os._exit(4)", 4, marks=pytest.mark.slow),
    ],
)
def test_a_child_that_is_forked_in_the_window_ends_as_without_gpurun(
    tmp_path: Path, gpurun: Gpurun, how: str, code: int
) -> None:
    """It records nothing, or its memory would grow as long as it lives."""
    path = script(tmp_path, FORKS.replace("HOW", how))
    path.write_text(MEMORY + path.read_text())
    done = gpurun("profile", "--steps", "25", "train.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().splitlines() == ["child 3.0 True", f"code {code}"]
    operators = recorded(tmp_path).timeline.operators or ()
    assert [each.calls for each in operators if each.name == "aten::linear"] == [25]


@pytest.mark.slow  # quick twin: the script that is over early, in this file
def test_a_window_without_a_step_is_none(tmp_path: Path, gpurun: Gpurun) -> None:
    script(tmp_path, "if step == 9: raise SystemExit(3)")
    done = gpurun("profile", "--json", "p.json", "train.py", cwd=tmp_path)
    assert done.returncode == 3
    document = json.loads((tmp_path / "p.json").read_text())
    short = any(said.startswith("the window is short") for said in document["failed_sources"])
    assert document["steps_profiled"] is None or document["steps_profiled"] > 0
    assert short is (document["steps_profiled"] is not None)


@pytest.mark.slow  # quick twin: the ranks that exchange gradients, in this file
def test_each_rank_has_a_window_of_its_own(tmp_path: Path, gpurun: Gpurun) -> None:
    script(tmp_path, "if step == 30: break")
    done = gpurun("profile", *STEPS, "--nproc-per-node", "2", "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (run_dir,) = (tmp_path / ".gpurun" / "runs").iterdir()
    found = recorded_profiles(run_dir)
    assert [each.rank for each in found] == [0, 1]
    assert [each.steps for each in found] == [10, 10]


def test_ranks_that_exchange_gradients_begin_and_end_at_the_same_step(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    """A rank whose window ended alone would leave the others in their exchange of gradients."""
    (tmp_path / "train.py").write_text(EXCHANGES)
    ranks = ("--nproc-per-node", "2")
    done = gpurun("profile", *STEPS, "--stop", "--quiet", *ranks, "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (run_dir,) = (tmp_path / ".gpurun" / "runs").iterdir()
    windows = [
        (event["first_step"], event["steps"])
        for log in run_dir.glob("events-rank*")
        for event in map(json.loads, log.read_text().splitlines())
        if event["event"] == "profile"
    ]
    assert len(windows) == 2
    assert len(set(windows)) == 1
    assert windows[0][1] == 10


@pytest.mark.slow
def test_a_long_training_is_profiled_again_and_again(tmp_path: Path, gpurun: Gpurun) -> None:
    """The last window is shown: what made the steps slow came after the first."""
    (tmp_path / "train.py").write_text(SLOWER_LATER)
    done = gpurun("--profile-every", "100", "train.py")
    assert done.returncode == 0
    assert done.stdout == b"trained\n"
    (run_dir,) = (tmp_path / ".gpurun" / "runs").iterdir()
    assert f"light profiles: gpurun diagnose .gpurun/runs/{run_dir.name}" in done.stderr.decode()
    (log,) = run_dir.glob("events-*")
    events = [json.loads(line) for line in log.read_text().splitlines()]
    windows = [event for event in events if event["event"] == "profile"]
    assert [window["number"] for window in windows] == list(range(1, len(windows) + 1))
    assert len(windows) >= 2
    starts = [window["first_step"] for window in windows]
    assert all(b - a >= 100 for a, b in itertools.pairwise(starts))
    assert gpurun("diagnose", "--json", "d.json", run_dir).returncode == 0
    document = json.loads((tmp_path / "d.json").read_text())
    assert document["steps_profiled"] == windows[-1]["steps"]
    assert document["findings"][0]["type"] == "host_bound"
    assert "in grows" in document["findings"][0]["description"]
    first = windows[-1]["first_step"] + 1
    assert any(note.startswith(f"steps {first} to ") for note in document["notes"])


def test_stop_is_refused_on_several_nodes(tmp_path: Path, gpurun: Gpurun) -> None:
    (tmp_path / "train.py").write_text(EXCHANGES)
    done = gpurun("profile", "--stop", "--nnodes=2", "train.py", cwd=tmp_path)
    assert done.returncode == 2
    assert b"--stop ends the ranks of one node\n" in done.stderr


def test_a_script_of_the_commands_name_still_runs(tmp_path: Path, gpurun: Gpurun) -> None:
    (tmp_path / "profile").write_text("print('mine')\n")
    assert gpurun("./profile", cwd=tmp_path).stdout == b"mine\n"
