"""What a plain run leaves behind, and what it does where nothing can be left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.launched import obey_permissions, start, write

Gpurun = Callable[..., "subprocess.CompletedProcess[bytes]"]


TRAINING = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
for x, y in torch.utils.data.DataLoader(data, batch_size=4):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
print("trained")
"""


def results(home: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in home.glob("runs/*/result.json")]


@pytest.mark.forked
def test_a_training_run_is_summed_up(tmp_path: Path, gpurun: Gpurun) -> None:
    result = gpurun("--json", "out.json", write(tmp_path, TRAINING))
    assert result.stdout == b"trained\n"
    (record,) = results(tmp_path / ".gpurun")
    assert (record["status"], record["exit_code"], record["steps"]) == ("completed", 0, 16)
    assert json.loads((tmp_path / "out.json").read_text()) == record
    lines = result.stderr.decode().splitlines()
    assert len(lines) > 1
    assert lines[-1].startswith("verdict=ok exit=0 run=.gpurun/runs/")


@pytest.mark.parametrize(
    "words",
    [("-m",), pytest.param(("--nproc-per-node=1", "-m"), marks=pytest.mark.slow)],
    ids=str,
)
def test_a_module_is_recorded_by_its_name(
    words: tuple[str, ...], tmp_path: Path, gpurun: Gpurun
) -> None:
    write(tmp_path, TRAINING)
    done = gpurun(*words, "script", "-m", "a b")
    assert done.returncode == 0, done.stderr.decode()
    (record,) = results(tmp_path / ".gpurun")
    assert record["command"] == ["-m", "script", "-m", "a b"]


def test_a_run_without_torch_is_recorded_too(tmp_path: Path, gpurun: Gpurun) -> None:
    result = gpurun("--json", "out.json", write(tmp_path, "raise SystemExit(3)"), "a")
    (record,) = results(tmp_path / ".gpurun")
    assert (record["status"], record["exit_code"], record["steps"]) == ("failed", 3, 0)
    assert record["command"] == ["script.py", "a"]
    assert record["samples_per_second"] is None
    assert json.loads((tmp_path / "out.json").read_text()) == record
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.forked
def test_records_are_kept_out_of_version_control(tmp_path: Path, gpurun: Gpurun) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    gpurun(write(tmp_path, ""))
    status = subprocess.check_output(["git", "status", "--porcelain", "-uall"], cwd=tmp_path)
    assert status == b"?? script.py\n"


@pytest.mark.parametrize("how", ["flag", "variable", "configuration"])
@pytest.mark.forked
def test_records_go_where_they_are_wanted(tmp_path: Path, gpurun: Gpurun, how: str) -> None:
    script = write(tmp_path, "")
    if how == "flag":
        gpurun("--out", "kept", script, env={"GPURUN_HOME": "elsewhere"})
    elif how == "variable":
        gpurun(script, env={"GPURUN_HOME": "kept"})
    else:
        (tmp_path / "gpurun.toml").write_text('[run]\nout = "kept"\n')
        gpurun(script)
    assert len(results(tmp_path / "kept")) == 1
    assert {path.name for path in tmp_path.iterdir()} <= {"kept", "script.py", "gpurun.toml"}


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A folder with a script that cannot be written."""
    folder = tmp_path / "work"
    folder.mkdir()
    write(folder, "print('ran')")
    folder.chmod(0o555)
    yield folder
    folder.chmod(0o755)


def run_in(
    folder: Path, environment: dict[str, str], state: Path
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "gpurun", "script.py"],
        cwd=folder,
        env={**environment, "XDG_STATE_HOME": str(state)},
        capture_output=True,
        preexec_fn=obey_permissions,
        check=False,
    )


def test_records_of_a_read_only_folder_go_to_the_state_folder(
    read_only: Path, clean_environment: dict[str, str]
) -> None:
    state = read_only.parent / "state"
    result = run_in(read_only, clean_environment, state)
    assert (result.stdout, result.returncode) == (b"ran\n", 0)
    assert len(results(state / "gpurun")) == 1


def test_without_any_place_for_records_the_run_goes_unrecorded(
    read_only: Path, clean_environment: dict[str, str]
) -> None:
    result = run_in(read_only, clean_environment, read_only / "state")
    assert (result.stdout, result.returncode) == (b"ran\n", 0)
    note, verdict = result.stderr.decode().splitlines()
    assert note.startswith("gpurun: this run is not recorded")
    assert verdict == "verdict=ok exit=0"


def test_home_that_is_a_file_does_not_stop_the_run(tmp_path: Path, gpurun: Gpurun) -> None:
    (tmp_path / "taken").write_text("")
    result = gpurun("--out", "taken", write(tmp_path, "print('ran')"))
    assert (result.stdout, result.returncode) == (b"ran\n", 0)
    assert result.stderr.startswith(b"gpurun: this run is not recorded")


def test_a_record_that_breaks_midway_leaves_the_exit_code(tmp_path: Path, gpurun: Gpurun) -> None:
    source = "import shutil; shutil.rmtree('.gpurun'); open('.gpurun', 'w'); raise SystemExit(5)"
    assert gpurun(write(tmp_path, source)).returncode == 5


@pytest.mark.forked
def test_a_failing_hook_is_recorded_and_the_script_goes_on(tmp_path: Path, gpurun: Gpurun) -> None:
    (tmp_path / "broken.py").write_text(
        "from gpurun.knobs.api import Effect, Knob, Skip\n"
        "class Broken(Knob):\n"
        '    """A knob that always fails."""\n'
        "    name = 'broken'\n    effect = Effect.PIPELINE\n"
        "    def candidates(self, facts):\n        return Skip('never')\n"
        "    def apply(self, value, hooks):\n        hooks.on_step(lambda step: 1 / 0)\n"
    )
    (tmp_path / "gpurun.toml").write_text('knobs = ["broken.py"]\n')
    saved = {
        "settings": {"broken": 1},
        "training_loaders": [],
        "speedup": None,
        "fingerprint": {},
        "command": [],
        "schema": "gpurun/settings@1",
    }
    (tmp_path / "settings.json").write_text(json.dumps(saved))
    result = gpurun("--settings", "settings.json", write(tmp_path, TRAINING))
    assert (result.stdout, result.returncode) == (b"trained\n", 0)
    (record,) = results(tmp_path / ".gpurun")
    assert record["steps"] == 16
    assert "ZeroDivisionError" in json.dumps(record)


def test_hooks_that_cannot_be_installed_are_reported(tmp_path: Path, gpurun: Gpurun) -> None:
    (tmp_path / "torch.py").touch()
    (tmp_path / "train.py").write_text("import torch; print('went on')")
    done = gpurun("train.py")
    assert (done.returncode, done.stdout) == (0, b"went on\n")
    assert "gpurun: hook switched off: session: " in done.stderr.decode()


def test_two_launches_at_once_keep_their_records_apart(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    script = write(tmp_path, "import sys; sys.exit(int(sys.argv[1]))")
    launchers = [start(tmp_path, clean_environment, script, str(code)) for code in range(6)]
    assert [launcher.wait() for launcher in launchers] == list(range(6))
    for launcher in launchers:
        launcher.communicate()
    assert sorted(record["exit_code"] for record in results(tmp_path / ".gpurun")) == list(range(6))


def test_settings_that_cannot_be_read_are_a_usage_error(tmp_path: Path, in_process: Gpurun) -> None:
    result = in_process("--settings", "nowhere.json", write(tmp_path, "print('ran')"))
    assert (result.stdout, result.returncode) == (b"", 2)
    assert len(result.stderr.splitlines()) == 3


def test_tuned_is_refused_where_nothing_was_tuned(tmp_path: Path, in_process: Gpurun) -> None:
    result = in_process("--tuned", write(tmp_path, "print('ran')"))
    assert (result.stdout, result.returncode) == (b"", 2)
    assert b"not tuned here yet" in result.stderr


def test_time_in_torch_save_and_what_was_read_from_disk_are_recorded(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    source = (
        TRAINING
        + """
import time
class Slow:
    def __getstate__(self):
        time.sleep(0.3)
        return {}
import pickle
torch.save(model.state_dict(), "model.pt")
assert pickle.loads(pickle.dumps(torch.save)) is torch.save  # as a spawned process gets it
torch.save(Slow(), "slow.pt")
try:
    torch.save(model, "no/such/folder.pt")
except RuntimeError as error:
    print("failed as always")
"""
    )
    result = gpurun(write(tmp_path, source))
    assert result.stdout == b"trained\nfailed as always\n"
    (record,) = results(tmp_path / ".gpurun")
    assert record["checkpoint_saves"] == 3
    assert record["checkpoint_seconds"] >= 0.3
    assert 0 < record["memory_share"] < 1
    if os.access("/proc/self/io", os.R_OK):
        assert record["host"]["disk_read_bytes"] >= 0
    assert b" in 3 saves (torch.save)" in result.stderr


REPLACED = """
import glob, os
{training}
(run,) = glob.glob(".gpurun/runs/*")
for name in os.listdir(run) + ["result.json", "samples.jsonl"]:
    if name != "control":
        if os.path.lexists(f"{{run}}/{{name}}"):
            os.unlink(f"{{run}}/{{name}}")
        os.mkfifo(f"{{run}}/{{name}}")
"""


@pytest.mark.parametrize("training", ["", TRAINING], ids=["bare", "training"])
def test_pipes_in_place_of_records_do_not_hang_a_run(
    tmp_path: Path, gpurun: Gpurun, training: str
) -> None:
    result = gpurun(write(tmp_path, REPLACED.format(training=training)))
    assert result.returncode == 0
    assert b"unreadable (it is no regular file)" in result.stderr
    assert b"is no regular file" in gpurun("report").stderr
    assert gpurun("monitor", "--once").returncode == 0


def test_a_link_in_place_of_a_run_folder_is_not_followed(tmp_path: Path, gpurun: Gpurun) -> None:
    (tmp_path / "mine").mkdir()
    script = "import glob, os\n(run,) = glob.glob('.gpurun/runs/*')\n"
    script += "os.rename(run, run + '.old')\nos.symlink(os.path.abspath('mine'), run)\n"
    result = gpurun(write(tmp_path, script))
    assert result.returncode == 0
    assert b"the record is incomplete: a link stands where its folder was" in result.stderr
    assert os.listdir(tmp_path / "mine") == []


@pytest.mark.parametrize("flag", [(), ("--quiet",)], ids=["told", "quiet"])
def test_the_exit_code_is_the_scripts_where_stderr_takes_nothing(
    tmp_path: Path, clean_environment: dict[str, str], flag: tuple[str, ...]
) -> None:
    write(tmp_path, "import sys\nsys.exit(6)\n")
    read_end, written = os.pipe()
    os.set_blocking(written, False)
    while True:
        try:
            os.write(written, bytes(4096))
        except BlockingIOError:
            break
    done = subprocess.run(
        [sys.executable, "-m", "gpurun", *flag, "script.py"],
        cwd=tmp_path,
        env=clean_environment,
        stderr=written,
        check=False,
        timeout=120,
    )
    os.close(read_end)
    os.close(written)
    assert done.returncode == 6
