"""The best isolation that the machine permits is found by trying; what it lacks is said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration import syscalls_refused
from tests.integration.isolation_launcher import (
    LAUNCHER,
    ME,
    User,
    tree,
    without_namespaces,
)
from tests.integration.launched import DEADLINE_SECONDS
from tests.integration.rank_pairs import AVAILABLE

CHOOSE = """
import os, sys
from pathlib import Path
from gpurun.isolation.available_modes import choose
found = choose(Path(sys.argv[1]), in_place="consent" in sys.argv)
print(found.mode and found.mode.value, "|", found.reason)
"""
REQUIRE = """
import sys
from pathlib import Path
from gpurun.errors import GpurunError
from gpurun.isolation.available_modes import require
try:
    require(Path(sys.argv[1]), in_place=False)
except GpurunError as error:
    print(error.todo)
"""


def chosen(cwd: Path, environment: dict[str, str], *words: str) -> str:
    """What `CHOOSE` prints where no namespace can be made."""
    return without_namespaces(cwd, environment, "-c", CHOOSE, str(cwd), *words).stdout.decode()


def test_overlays_are_chosen_where_they_work_and_the_probe_leaves_nothing(open_path: Path) -> None:
    before = tree(open_path)
    printed, _ = ME.start(CHOOSE, str(open_path)).communicate(timeout=DEADLINE_SECONDS)
    assert printed == "overlay | \n"
    assert tree(open_path) == before


def test_without_namespaces_landlock_is_chosen_and_the_reason_is_told(
    open_path: Path, clean_environment: dict[str, str]
) -> None:
    printed = chosen(open_path, clean_environment)
    assert printed.startswith("landlock | overlay mounts: ")
    assert "user namespaces are not permitted" in printed


ON_RAMFS = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
assert libc.unshare(0x20000) == 0
libc.mount(b"none", b"/", None, 0x44000, None)
assert libc.mount(b"ramfs", b"/var/tmp", b"ramfs", 0, None) == 0
os.chmod("/var/tmp", 0o1777)
if len(sys.argv) > 2:
    import pwd; entry = pwd.getpwnam(sys.argv[2]); os.setgroups([])
    os.setgid(entry.pw_gid); os.setuid(entry.pw_uid)
"""


def test_an_overlay_in_which_folders_cannot_be_changed_as_usual_is_not_chosen(
    user: User, open_path: Path
) -> None:
    """On ramfs an overlay can be written to, and renaming over a file or away from one fails."""
    if os.getuid() != 0:
        pytest.skip("only root can mount one")
    words = (str(open_path), *([user.name] if user.name else []))
    printed, _ = User(None, user.python).start(ON_RAMFS + CHOOSE, *words).communicate(timeout=60)
    assert printed.startswith("landlock | overlay mounts: a probe could not write (OSError: ")


def test_layers_in_which_files_cannot_be_changed_as_usual_are_not_given_to_ranks(
    user: User, open_path: Path
) -> None:
    """The same probe: one file can be made in such a layer, so ranks got it, and failed in it."""
    if os.getuid() != 0:
        pytest.skip("only root can mount one")
    user.give(open_path)
    words = (str(open_path), *([user.name] if user.name else []))
    printed, _ = User(None, user.python).start(ON_RAMFS + AVAILABLE, *words).communicate(timeout=60)
    able, reason = json.loads(printed)
    assert not able
    assert reason.startswith("a probe could not write (OSError: ")
    assert list(open_path.iterdir()) == []


def test_overlays_are_chosen_with_the_root_folder_as_working_folder() -> None:
    printed, _ = ME.start(CHOOSE, "/").communicate(timeout=DEADLINE_SECONDS)
    assert printed == "overlay | \n"


def test_overlays_are_chosen_for_root_in_a_user_namespace(open_path: Path) -> None:
    """As in a rootless container."""
    prefix = ("unshare", "--user", "--map-root-user", "--mount")
    if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("user namespaces are forbidden here")
    printed, _ = ME.start(CHOOSE, str(open_path), prefix=prefix).communicate(timeout=60)
    assert printed == "overlay | \n"


def test_without_any_isolation_trials_are_refused_with_what_to_do(
    open_path: Path, clean_environment: dict[str, str]
) -> None:
    environment = {**clean_environment, "GPURUN_ISOLATION": "overlay"}
    printed = chosen(open_path, environment)
    assert printed.startswith("None | overlay mounts: ")
    assert "user namespaces are not permitted" in printed
    refused = without_namespaces(open_path, environment, "-c", REQUIRE, str(open_path))
    assert b"--trials-in-place" in refused.stdout


def test_trials_in_place_need_consent_and_nothing_else(
    open_path: Path, clean_environment: dict[str, str]
) -> None:
    assert chosen(open_path, clean_environment, "consent").startswith("in place | ")


MAPS_REFUSED = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
user, group = os.getuid(), os.getgid()
if libc.unshare(0x10020000) != 0: sys.exit(99)
open("/proc/self/setgroups", "w").write("deny")
open("/proc/self/uid_map", "w").write(f"0 {user} 1")
open("/proc/self/gid_map", "w").write(f"0 {group} 1")
assert libc.mount(b"none", b"/", None, 0x44000, None) == 0
assert libc.mount(b"/proc", b"/proc", None, 0x5000, None) == 0
assert libc.mount(b"none", b"/proc", None, 0x1021 | 14, None) == 0, "read-only"
libc.prctl(24, 21, 0, 0, 0)  # CAP_SYS_ADMIN leaves with the next exec
os.execv(sys.executable, [sys.executable, "-B", "-c", *sys.argv[1:]])
"""
"""Becomes a python that may make a user namespace but map nobody there, as on Ubuntu 24.04."""


EMPTY_SHM = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x20000) != 0: sys.exit(99)
assert libc.mount(b"none", b"/", None, 0x44000, None) == 0
assert libc.mount(b"none", b"/dev/shm", b"tmpfs", 0, None) == 0
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def under_landlock(
    folder: Path, environment: dict[str, str], prefix: tuple[str, ...], code: str
) -> str:
    """What a script of this code prints in a sandbox under Landlock, launched behind a prefix."""
    log = folder / "log"
    log.touch()
    ask = {"argv": [sys.executable, "-c", code], "cwd": str(folder), "mode": "landlock"}
    words = (LAUNCHER, json.dumps({**ask, "log": str(log)}))
    # coverage could not write there, and would say so in the script's output
    unmeasured = {k: v for k, v in environment.items() if not k.startswith("COVERAGE_")}
    done = subprocess.run(
        [sys.executable, *prefix, *words], env=unmeasured, capture_output=True, check=False
    )
    if done.returncode == syscalls_refused.CANNOT:
        pytest.skip("the kernel cannot be told to refuse this here")
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout).get("error") or log.read_text()


def test_where_a_user_namespace_can_be_made_but_not_mapped_the_script_keeps_its_user(
    open_path: Path, clean_environment: dict[str, str]
) -> None:
    code = "import os; print(os.getuid(), os.access('.', os.W_OK))"
    printed = under_landlock(open_path, clean_environment, ("-c", MAPS_REFUSED), code)
    assert printed == "0 True\n", "it was nobody, in a namespace without a map"


def test_landlock_does_without_a_shared_memory_of_its_own(
    open_path: Path, clean_environment: dict[str, str]
) -> None:
    prefix = ("-c", EMPTY_SHM, syscalls_refused.__file__, "shared-memory", sys.executable, "-c")
    assert under_landlock(open_path, clean_environment, prefix, "print('ran')") == "ran\n"


CONFINED = """
import os, subprocess, sys, tempfile
from pathlib import Path
outside, project = Path(sys.argv[1]), Path(sys.argv[2])
refused = []
for name, attempt in {
    "write": lambda: (outside / "kept.txt").write_text("x"),
    "create": lambda: (outside / "new.txt").write_text("x"),
    "truncate": lambda: os.truncate(outside / "kept.txt", 0),
    "remove": lambda: (outside / "kept.txt").unlink(),
    "rename": lambda: (outside / "kept.txt").rename(outside / "other"),
    "folder": lambda: (outside / "folder").mkdir(),
    "original": lambda: (project.parent / project.name / "data.txt").write_text("x"),
    "shell": lambda: subprocess.run(["sh", "-c", f"echo > {outside}/sh"], check=True,
                                    stderr=subprocess.DEVNULL),
}.items():
    try: attempt()
    except (OSError, subprocess.CalledProcessError): refused.append(name)
print(*refused)
assert (outside / "kept.txt").read_text() == "kept"
with open("data.txt", "a") as file: file.write(" more")
os.makedirs("downloads"); Path("downloads/set").write_text("1234")
print(Path("data.txt").read_text(), Path("sub/link").read_text(), Path("../away").exists())
tempfile.NamedTemporaryFile().close()
open(os.devnull, "w").write("x")
print("ok", flush=True)
if "hold" in sys.argv: import time; time.sleep(600)
"""


def test_under_landlock_the_script_works_on_a_copy_and_writes_elsewhere_fail(
    user: User, open_path: Path
) -> None:
    cwd, outside, layer = open_path / "project", open_path / "outside", open_path / "layer"
    (cwd / "sub").mkdir(parents=True)
    (cwd / ".gpurun").mkdir()
    outside.mkdir()
    (cwd / "data.txt").write_text("data")
    (outside / "kept.txt").write_text("kept")
    os.symlink("../../outside/kept.txt", cwd / "sub/link")
    (cwd / "train.py").write_text(CONFINED)
    user.give(cwd, *cwd.rglob("*"), outside, *outside.rglob("*"))
    before = tree(cwd), tree(outside)

    argv = (user.python, "-B", str(cwd / "train.py"), str(outside), "/".join(("", *cwd.parts[1:])))
    ask = {"mode": "landlock", "log": str(open_path / "log")}
    said = user.sandbox(cwd, *argv, "hold", wait_for="ok\n", capture=str(layer), kill=True, **ask)

    refused, seen, ok, _ = said["log"].split("\n")
    # The project's path on the command line is the copy's: writing there is not refused.
    assert refused == "write create truncate remove rename folder shell"
    assert (seen, ok) == ("x more kept False", "ok")
    assert (tree(cwd), tree(outside)) == before

    again = user.sandbox(cwd, "cat", "downloads/set", "data.txt", layers=[str(layer)], **ask)
    assert again["log"] == "1234x more"
    captured = {path.name for path in layer.rglob("*") if path.is_file()}
    assert captured == {"set", "data.txt"}
