"""A rank above a private layer ends as it would without, and nothing of the layer is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from gpurun.isolation.folder_removal import MARK, mark
from gpurun.isolation.syscalls import die_with_parent
from tests.integration.isolation_launcher import (
    ME,
    REPOSITORY,
    User,
    gone_within,
    tree,
    without_namespaces,
)
from tests.integration.launched import DEADLINE_SECONDS, ORPHAN_SECONDS
from tests.integration.rank_pairs import AVAILABLE, Ranks

DEATH_SIGNAL = "from gpurun.isolation.syscalls import parent_death_signal as p; print(p())"

STRANGER = """
from gpurun.isolation.namespaces import enter_mount_namespace
enter_mount_namespace()
print("up", flush=True)
input()
print("lives")
"""

SAVE_AND_LOAD = """
import os, shutil, sys, torch
from pathlib import Path
rank = os.environ["RANK"]
if rank == "0":  # as rank_zero_last keeps it
    while not os.path.exists("run folder/made-1"):
        pass
shutil.rmtree("out")
os.makedirs("out")
Path("run folder", "made-" + rank).touch()
torch.save({"weights": torch.ones(3), "rank": rank}, "out/best.pt")
with open("log.txt", "a") as log:
    log.write("an epoch\\n")
Path("run folder", "seen-" + rank).write_text(str(torch.load("out/best.pt")["rank"]))
sys.exit(3 if rank == "1" and "fail" in sys.argv else 0)
"""
LAUNCH = """
import os, sys
from pathlib import Path
from gpurun.isolation.rank_command import layered_target, remove_layers
from gpurun.launch.elastic_agent import run_elastic
from gpurun.arguments.options import Target, TargetKind
run = Path("run folder")
script = Target(TargetKind.COMMAND, sys.executable, ("-B", "script.py", *sys.argv[1:]))
target = layered_target(script, run)
code = run_elastic(("--nproc-per-node=2", "--standalone"), target, os.environ)
remove_layers(run)
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("exit 0", 0),
        ("exit 7", 7),
        ("kill -TERM $$", -signal.SIGTERM),
        ("kill -KILL $$", -signal.SIGKILL),
    ],
)
def test_the_agent_gets_the_ending_of_the_script_itself(
    tmp_path: Path, script: str, code: int
) -> None:
    ranks = Ranks(ME, tmp_path, "sh", "-c", script)
    process = ranks.start(1)
    process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == code
    assert ranks.leave_nothing()


def test_a_signal_to_the_rank_reaches_the_script_and_nothing_outlives_it(
    user: User, open_path: Path
) -> None:
    marker = f"86421.{uuid.uuid4().int % 10**12:012}"  # as whom else this runs beside it
    code = f"trap 'exit 5' USR1; sleep {marker} & setsid sleep {marker} & echo up; wait"
    ranks = Ranks(user, open_path, "sh", "-c", code)
    process = ranks.start(1)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGUSR1)
    assert process.wait(DEADLINE_SECONDS) == 5
    assert ranks.leave_nothing()
    process.communicate(timeout=DEADLINE_SECONDS)  # until what has its stdout is gone
    assert gone_within(marker, ORPHAN_SECONDS)


def test_only_what_sees_the_layer_of_an_ended_rank_is_ended(tmp_path: Path) -> None:
    """The kernel gives the number of an ended mount namespace to the next one."""
    ranks = Ranks(ME, tmp_path, "sh", "-c", "echo up; exec sleep 1000")
    process = ranks.start(1)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.kill()
    process.communicate()
    strangers = [
        subprocess.Popen(
            [sys.executable, "-c", STRANGER],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)  # the kernel gives each the lowest number that is free
    ]
    for stranger in strangers:
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == "up\n"
    assert ranks.leave_nothing()
    assert [stranger.communicate("\n")[0] for stranger in strangers] == ["lives\n"] * 4


def test_a_rank_still_dies_with_its_parent(user: User, open_path: Path) -> None:
    ranks = Ranks(user, open_path, user.python, "-B", "-c", DEATH_SIGNAL)
    process = ranks.start(1, preexec_fn=lambda: die_with_parent(signal.SIGTERM))
    assert process.communicate(timeout=DEADLINE_SECONDS)[0] == f"{int(signal.SIGTERM)}\n"


def test_what_a_killed_run_leaves_is_removed_by_the_next_and_a_layer_in_use_is_not(
    user: User, open_path: Path
) -> None:
    place, project = open_path / "temporary", open_path / "project"
    for folder in (place, project):
        folder.mkdir()
        user.give(folder)
    ranks = Ranks(user, project, "sh", "-c", "echo x > own; echo up; exec sleep 1000")
    ranks.move_layers(place)
    process = ranks.start(1)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    (layer,) = place.glob("gpurun-rank-*")
    os.utime(layer, (0, 0))
    words = (AVAILABLE, str(project))
    said, _ = user.start(*words, TMPDIR=str(place)).communicate(timeout=DEADLINE_SECONDS)
    assert json.loads(said) == [True, ""]
    assert layer.exists(), "a layer in use was removed"
    process.kill()
    process.communicate()
    user.start(*words, TMPDIR=str(place)).communicate(timeout=DEADLINE_SECONDS)
    assert not layer.exists()
    assert os.listdir(project) == ["run folder"]


def test_without_namespaces_it_says_why_and_no_rank_writes_a_real_file(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "RANK": "1"}
    said = without_namespaces(tmp_path, environment, "-c", AVAILABLE, str(tmp_path))
    works, reason = json.loads(said.stdout)
    assert not works
    assert reason.startswith("user namespaces are not permitted")
    ranks = Ranks(ME, tmp_path, "touch", "written")
    done = without_namespaces(tmp_path, environment, *ranks.words[1:])
    assert done.returncode == 70
    assert done.stderr.startswith(b"gpurun: no private layer for rank 1: user namespaces")
    assert sorted(os.listdir(tmp_path)) == ["run folder"]


def test_two_ranks_of_the_agent_leave_what_one_process_would_have_left(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SAVE_AND_LOAD)
    (tmp_path / "run folder").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out/old.pt").write_text("old")
    (tmp_path / "log.txt").write_text("an epoch\n")
    done = subprocess.run(
        [sys.executable, "-c", LAUNCH, "fail"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert b"rank 1 failed first: exit code 3" in done.stderr
    seen = {path.name: path.read_text() for path in (tmp_path / "run folder").glob("seen-*")}
    assert seen == {"seen-0": "0", "seen-1": "1"}
    assert os.listdir(tmp_path / "out") == ["best.pt"]
    assert (tmp_path / "log.txt").read_text() == "an epoch\nan epoch\n"
    saved = (tmp_path / "out/best.pt").read_bytes()
    assert pickled("0") in saved
    assert pickled("1") not in saved
    assert sorted(os.listdir(tmp_path)) == ["log.txt", "out", "run folder", "script.py"]


def pickled(text: str) -> bytes:
    """A short string as pickle's protocol 2 writes it."""
    return b"X" + len(text).to_bytes(4, "little") + text.encode()


SWEEP = """
import os, sys
from gpurun.isolation.rank_command import available, remove_layers
from pathlib import Path
os.chdir(sys.argv[1])
print(available()[0])
remove_layers(Path("run folder"))
"""
OTHERS = 65534


def forged(layer: Path, mine: Path, kind: str) -> Path:
    """Something beside a layer, as another user could lay it there."""
    made = layer.with_name(layer.name[:-1])  # which is a part of the layer's name
    if kind == "a link":
        made.symlink_to(mine)
        return made
    made.mkdir()
    mark(made)
    if kind == "another user's folder":
        for path in (made / MARK, made):
            os.chown(path, OTHERS, OTHERS, follow_symlinks=False)
    else:  # a copy of the user's own, whose mark names another folder
        (made / MARK).unlink()
        (made / MARK).symlink_to("1")
    made.chmod(0o777)
    return made


@pytest.mark.parametrize("kind", ["another user's folder", "a link", "a copy"])
def test_what_others_lay_beside_layers_stays(user: User, open_path: Path, kind: str) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can make files of others")
    place, mine, project = (open_path / name for name in ("temporary", "mine", "project"))
    for folder in (place, project, mine, mine / "deep"):
        folder.mkdir()
        folder.chmod(0o750)
    (mine / "deep" / "file").touch()
    place.chmod(0o1777)
    user.give(project, mine, mine / "deep", mine / "deep" / "file")
    ranks = Ranks(user, project, "sh", "-c", "echo up; read word")
    ranks.move_layers(place)
    process = ranks.start(1)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    (layer,) = place.glob("gpurun-rank-*")
    made = forged(layer, mine, kind)
    for folder in (made, mine):
        os.utime(folder, (0, 0))
    before = tree(mine), made.lstat().st_ctime_ns
    process.communicate("\n")
    sweeping = user.start(SWEEP, str(project), TMPDIR=str(place))
    assert sweeping.communicate(timeout=DEADLINE_SECONDS)[0] == "True\n"
    assert (tree(mine), made.lstat().st_ctime_ns) == before
    assert not layer.exists()
