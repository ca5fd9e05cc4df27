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
    processes_with,
    tree,
    without_namespaces,
)
from tests.integration.launched import DEADLINE_SECONDS, ORPHAN_SECONDS, alive, wait_for
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
shutil.rmtree("out", ignore_errors=True)  # the other rank may just be doing the same
os.makedirs("out", exist_ok=True)
torch.save({"weights": torch.ones(3), "rank": rank}, "out/best.pt")
with open("log.txt", "a") as log:
    log.write("an epoch\\n")
Path("run folder", "seen-" + rank).write_text(str(torch.load("out/best.pt")["rank"]))
sys.exit(3 if rank == "1" and "fail" in sys.argv else 0)
"""
LAUNCH = """
import os, sys
from pathlib import Path
from gpurun.isolation.rank_layers.layer_command import finish, rank_command
from gpurun.launch.elastic_agent import run_elastic
from gpurun.arguments.options import Target, TargetKind
run = Path("run folder")
words = rank_command([sys.executable, "-B", "script.py", *sys.argv[1:]], run, ())
target = Target(TargetKind.COMMAND, words[0], tuple(words[1:]))
code = run_elastic(("--nproc-per-node=2", "--standalone"), target, os.environ)
assert finish(run)
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
    process.communicate()
    assert ranks.leave_nothing()
    assert gone_within(marker, ORPHAN_SECONDS)


def test_who_gets_the_number_of_an_ended_layers_namespace_is_left_alone(tmp_path: Path) -> None:
    ranks = Ranks(ME, tmp_path, "sh", "-c", "echo up; exec sleep 1000")
    process = ranks.start(1)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    for pid in processes_with(str(ranks.run)):
        os.kill(pid, signal.SIGKILL)
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
    assert ranks.asks(AVAILABLE, str(tmp_path)) == [True, ""]
    assert ranks.leave_nothing()
    assert [stranger.communicate("\n")[0] for stranger in strangers] == ["lives\n"] * 4


def test_a_rank_still_dies_with_its_parent(user: User, open_path: Path) -> None:
    ranks = Ranks(user, open_path, user.python, "-B", "-c", DEATH_SIGNAL)
    process = ranks.start(1, preexec_fn=lambda: die_with_parent(signal.SIGTERM))
    assert process.communicate(timeout=DEADLINE_SECONDS)[0] == f"{int(signal.SIGTERM)}\n"


def test_what_a_killed_layer_leaves_is_removed_by_the_next_call(
    user: User, open_path: Path
) -> None:
    ranks = Ranks(user, open_path, "sh", "-c", "echo x > own; echo up; exec sleep 1000")
    process = ranks.start(1)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    beside = processes_with(str(ranks.run))
    assert len(beside) == 2
    for pid in beside:
        os.kill(pid, signal.SIGKILL)
    assert not ranks.asks(
        "import json, sys; from pathlib import Path;"
        "from gpurun.isolation.rank_layers.layer_command import finish;"
        "print(json.dumps(finish(Path(sys.argv[1]), 0.2)))",
        str(ranks.run),
    ), "a layer in use was removed"
    process.kill()
    process.communicate()
    assert ranks.asks(AVAILABLE, str(open_path)) == [True, ""]
    assert ranks.leave_nothing()
    assert not any(alive(pid) for pid in beside)
    assert os.listdir(open_path) == ["run folder"]


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
    seen = {path.name: path.read_text() for path in (tmp_path / "run folder").iterdir()}
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
from gpurun.isolation.rank_layers.layer_command import available, finish
from pathlib import Path
os.chdir(sys.argv[1])
print(available()[0], finish(Path("run folder"), 0.2))
"""
OTHERS = 65534


def forged(layer: Path, run: Path, mine: Path, kind: str) -> Path:
    """Something beside a living layer, as another user could lay it there."""
    made = layer.with_name(layer.name[:-1])  # which is a part of the living layer's name
    if kind == "a link":
        made.symlink_to(mine)
        return made
    made.mkdir()
    if kind == "a named pipe":
        os.mkfifo(made / "owner")
        (made / "owner").chmod(0o666)
    else:
        processes = os.readlink("/proc/self/ns/pid")
        dead = {"run": str(run), "process": 2**22 + 1, "started": "1", "processes": processes}
        (made / "owner").write_text(json.dumps(dead))
        (made / "owner").chmod(0o666)
    mark(made)
    if kind != "a copy":  # of the user's own, whose mark names another folder
        for path in (made / MARK, made / "owner", made):
            os.chown(path, OTHERS, OTHERS, follow_symlinks=False)
    else:
        (made / MARK).unlink()
        (made / MARK).symlink_to("1")
    made.chmod(0o777)
    return made


@pytest.mark.parametrize("kind", ["a forged owner", "a named pipe", "a link", "a copy"])
def test_what_others_lay_beside_layers_kills_nothing_hangs_nothing_and_stays(
    user: User, open_path: Path, kind: str
) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can make files of others")
    place, mine, project = (open_path / name for name in ("temporary", "mine", "project"))
    for folder in (place, project, mine, mine / "deep"):
        folder.mkdir()
        folder.chmod(0o750)
    (mine / "deep" / "file").touch()
    place.chmod(0o1777)
    user.give(project, mine, mine / "deep", mine / "deep" / "file")
    os.utime(mine, (0, 0))
    ranks = Ranks(user, project, "sh", "-c", "echo up; read word; echo lives")
    ranks.move_layers(place)
    process = ranks.start(1)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    (layer,) = place.glob("gpurun-rank-*")
    made = forged(layer, ranks.run, mine, kind)
    before = tree(mine), made.lstat().st_ctime_ns
    sweeping = user.start(SWEEP, str(project), TMPDIR=str(place))
    assert sweeping.communicate(timeout=DEADLINE_SECONDS)[0] == "True False\n"
    assert (tree(mine), made.lstat().st_ctime_ns) == before
    assert process.communicate("\n")[0] == "lives\n"
    assert wait_for(lambda: not layer.exists())
