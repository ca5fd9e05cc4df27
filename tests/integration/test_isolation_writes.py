"""A trial sees all of its own writes, by whatever way, and the files stay as they were."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.isolation_launcher import ME, User, ordinary_user, tree
from tests.integration.launched import DEADLINE_SECONDS

EVERY_WAY = """
import ctypes, mmap, os, shutil, sqlite3, subprocess, sys
from pathlib import Path
elsewhere, name = Path(sys.argv[1]), sys.argv[2]
Path("new.txt").write_text("new")
with open("log.txt", "a") as file: file.write("more")
data = sqlite3.connect("runs.db")
data.execute("insert into runs values (2)"); data.commit(); data.close()
subprocess.run(["sh", "-c", "echo sh > by_shell; echo sh >> old/deep/a.txt"], check=True)
(elsewhere / "absolute.txt").write_text("x")
Path("link.txt").write_text("through the link")
os.link("hard_a.txt", "hard_c.txt")
with open("hard_a.txt", "a") as file: file.write("!")
with open("mapped.bin", "r+b") as file, mmap.mmap(file.fileno(), 0) as area: area[0:4] = b"MMAP"
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
stream = libc.fopen(b"from_c.bin", b"w"); libc.fclose(ctypes.c_void_p(stream))
os.truncate("cut.txt", 1)
os.chmod("mode.txt", 0o600)
os.utime("mode.txt", (1, 1))
os.rename("rename.txt", "renamed.txt")
os.replace("new.txt", "replaced.txt")
os.symlink("/nowhere", "dangling")
os.mkfifo("pipe")
shutil.rmtree("output"); os.makedirs("output/again")
os.unlink("gone.txt")
for place in ("/var/tmp", "/tmp", "/dev/shm", Path.home()):
    (Path(place) / name).write_text("mine")
    assert (Path(place) / name).read_text() == "mine"
assert Path("log.txt").read_text() == "first more"
data = sqlite3.connect("runs.db")
assert data.execute("select count(*) from runs").fetchone() == (2,)
assert Path("old/deep/a.txt").read_text() == "ash\\n"
assert Path("target.txt").read_text() == "through the link"
assert Path("mapped.bin").read_bytes()[:8] == b"MMAP0000"
assert Path("replaced.txt").read_text() == "new" and not Path("gone.txt").exists()
assert os.listdir("output") == ["again"] and Path("renamed.txt").exists()
assert os.stat("mode.txt").st_mode & 0o777 == 0o600
assert (os.getuid(), os.getgid()) == (int(sys.argv[3]), int(sys.argv[4]))
print("saw all of it")
"""


def furnish(cwd: Path) -> None:
    (cwd / "old/deep").mkdir(parents=True)
    (cwd / "output/checkpoints").mkdir(parents=True)
    texts = {
        "log.txt": "first ", "old/deep/a.txt": "a", "target.txt": "t", "hard_a.txt": "hard",
        "cut.txt": "long", "mode.txt": "m", "rename.txt": "r", "gone.txt": "g",
        "output/checkpoints/last.pt": "weights",
    }  # fmt: skip
    for name, text in texts.items():
        (cwd / name).write_text(text)
    (cwd / "mapped.bin").write_bytes(b"0" * 8192)
    os.link(cwd / "hard_a.txt", cwd / "hard_b.txt")
    os.symlink("target.txt", cwd / "link.txt")
    code = "import sqlite3; d = sqlite3.connect('runs.db'); d.execute('create table runs (n int)');"
    code += "d.execute('insert into runs values (1)'); d.commit()"
    subprocess.run([sys.executable, "-c", code], cwd=cwd, check=True)


@pytest.fixture
def project(user: User, open_path: Path) -> Path:
    cwd = open_path / "a project, with: odd signs"
    cwd.mkdir()
    furnish(cwd)
    user.give(cwd, *(path for path in cwd.rglob("*") if not path.is_symlink()))
    return cwd


def test_whatever_way_a_script_writes_it_sees_it_and_the_files_stay_as_they_were(
    user: User, project: Path, open_path: Path
) -> None:
    elsewhere = open_path / "elsewhere"
    elsewhere.mkdir()
    (project / "train.py").write_text(EVERY_WAY)
    user.give(elsewhere, project / "train.py")
    log = open_path / "log"
    log.touch()
    name = f"gpurun-test-{os.getpid()}"
    uid, gid = project.stat().st_uid, project.stat().st_gid
    before = tree(open_path)

    said = user.sandbox(
        project, user.python, "-B", "train.py", str(elsewhere), name, str(uid), str(gid),
        log=str(log),
    )  # fmt: skip

    assert said["log"].splitlines()[-1] == "saw all of it"
    assert (said["code"], said["notes"]) == (0, [])
    after = tree(open_path)
    del before[str(log)], after[str(log)]
    assert after == before
    leftovers = [
        place
        for place in ("/var/tmp", "/tmp", "/dev/shm", user.home)
        if (Path(place) / name).exists()
    ]
    assert leftovers == []


def test_new_files_in_the_root_folder_vanish(project: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root may write there at all")
    name = f"/gpurun-test-{os.getpid()}"
    said = ME.sandbox(project, "sh", "-c", f"echo mine > {name} && cat {name}")
    assert said["log"].split() == ["mine"]
    assert not Path(name).exists()


def test_a_large_file_in_the_root_folder_can_be_overwritten() -> None:
    """As `torch.save` does where a container starts the script in /."""
    if os.getuid() != 0:
        pytest.skip("only root may write there at all")
    model = Path(f"/gpurun-test-{os.getpid()}.pt")
    model.write_bytes(b"0" * LARGE_BYTES)
    log = Path(f"/tmp/{model.name}.log")
    command = f"set -e; echo 1 > {model.name}; mv {model.name} new; mv new {model.name}; cat /*.pt"
    try:
        said = ME.sandbox(Path("/"), "sh", "-c", command, log=str(log))
        assert (said["log"], said["code"], said["notes"]) == ("1\n", 0, [])
        assert model.stat().st_size == LARGE_BYTES
    finally:
        model.unlink()
        log.unlink()


def test_a_writable_folder_is_the_real_one_though_it_lies_in_the_working_folder(
    user: User, project: Path
) -> None:
    run = project / ".gpurun/runs/1"
    run.mkdir(parents=True)
    user.give(project / ".gpurun", project / ".gpurun/runs", run)
    command = "echo event > .gpurun/runs/1/events; echo lost > .gpurun/runs/other"
    said = user.sandbox(project, "sh", "-c", command, writable=[str(run)])
    assert said["code"] == 0, said
    assert (run / "events").read_text() == "event\n"
    assert not (project / ".gpurun/runs/other").exists()


def test_what_was_captured_at_the_first_step_is_there_in_later_trials(
    user: User, project: Path, open_path: Path
) -> None:
    name = f"gpurun-test-{os.getpid()}"
    first = (
        "from pathlib import Path; import time\n"
        "Path('downloads/sub').mkdir(parents=True); Path('downloads/sub/data').write_text('1234')\n"
        f"Path('/var/tmp/{name}').write_text('in memory'); Path('log.txt').write_text('changed')\n"
        "Path('/tmp/empty').mkdir(exist_ok=True)\n"
        "print('held', flush=True); time.sleep(600)\n"
    )
    layer, second_layer = open_path / "layer, one", open_path / "layer:two"
    said = user.script(project, first, wait_for="held", capture=str(layer), kill=True)
    assert said["captured"] >= len("1234" + "in memory" + "changed")
    assert not (project / "downloads").exists()

    second = (
        f"cat downloads/sub/data /var/tmp/{name} log.txt; echo 5 > downloads/sub/data; "
        "echo held; sleep 600"
    )
    said = user.sandbox(
        project, "sh", "-c", second, layers=[str(layer)], wait_for="held",
        capture=str(second_layer), kill=True,
    )  # fmt: skip
    assert said["log"] == "1234in memorychangedheld\n"

    third = f"cat downloads/sub/data /var/tmp/{name}"
    layers = [str(layer), str(second_layer)]
    said = user.sandbox(project, "sh", "-c", third, layers=layers)
    assert said["log"] == "5\nin memory"
    assert said["notes"] == []


EXCHANGES = """
import os, shutil, time
shutil.rmtree("old"); open("old", "w").write("a file now")
os.unlink("log.txt"); os.mkdir("log.txt"); open("log.txt/in", "w").write("a folder now")
os.unlink("link.txt"); os.mkdir("link.txt")
print("held", flush=True); time.sleep(600)
"""


@pytest.mark.parametrize("mode", ["overlay", "landlock"])
def test_a_trial_may_replace_a_folder_by_a_file_and_a_file_by_a_folder(
    user: User, project: Path, open_path: Path, mode: str
) -> None:
    layers = [str(open_path / "layer one"), str(open_path / "layer two")]
    argv = (user.python, "-c", EXCHANGES)
    user.sandbox(project, *argv, mode=mode, wait_for="held", capture=layers[0], kill=True)
    look = ("sh", "-c", "cat old log.txt/in; ls -d link.txt/")
    said = user.sandbox(project, *look, mode=mode, layers=layers[:1])
    assert said["log"] == "a file nowa folder nowlink.txt/\n"

    back = "import os, shutil, time; os.unlink('old'); os.mkdir('old'); shutil.rmtree('log.txt')\n"
    back += "open('log.txt', 'w').write('a file again'); print('held', flush=True); time.sleep(600)"
    argv, again = (user.python, "-c", back), {"layers": layers[:1], "capture": layers[1]}
    user.sandbox(project, *argv, mode=mode, wait_for="held", kill=True, **again)
    said = user.sandbox(project, "sh", "-c", "ls -d old/; cat log.txt", mode=mode, layers=layers)
    assert said["log"] == "old/\na file again"


def test_a_folder_below_somebody_elses_can_be_written_to(open_path: Path) -> None:
    """As on clusters: /data belongs to root, /data/me to me."""
    someone = ordinary_user()
    if someone is None:
        pytest.skip("not root, or no ordinary user with a python it may run")
    cwd = open_path / "data/me"
    cwd.mkdir(parents=True)
    someone.give(cwd)
    said = someone.sandbox(cwd, "sh", "-c", "echo x > f && cat f", log=str(open_path / "log"))
    assert (said["log"], said["code"]) == ("x\n", 0)
    assert list(cwd.iterdir()) == []


MOUNTED = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
assert libc.unshare(0x20000) == 0
libc.mount(b"none", b"/", None, 0x44000, None)
place, file = os.fsencode(sys.argv[1]), os.fsencode(sys.argv[2])
assert libc.mount(b"tmpfs", place, b"tmpfs", 0, b"mode=777") == 0
assert libc.mount(b"/etc/hostname", file, None, 4096, None) == 0
open(place + b"/samples", "w").write("data")
os.chown(place + b"/samples", os.stat(sys.argv[4]).st_uid, -1)
"""


LARGE_BYTES, TOO_LARGE_BYTES = 3 << 20, 3 << 30


@pytest.mark.parametrize("who", ["root", "an ordinary user"])
def test_other_file_systems_below_the_working_folder_are_isolated_too(
    who: str, open_path: Path
) -> None:
    """In a user namespace their folders cannot be overlaid as a whole."""
    someone = ordinary_user()
    if someone is None:
        pytest.skip("not root, or no ordinary user with a python it may run")
    cwd = open_path / "project"
    (cwd / "data").mkdir(parents=True)
    (cwd / "name").touch()
    (cwd / "plain.txt").write_text("plain")
    for name in ("model.pt", "output/last.pt", "output/best/model.pt"):
        (cwd / name).parent.mkdir(exist_ok=True)
        (cwd / name).write_bytes(b"0" * LARGE_BYTES)
    (cwd / "data.bin").touch()
    os.truncate(cwd / "data.bin", TOO_LARGE_BYTES)
    owner = someone if who == "an ordinary user" else ME
    owner.give(open_path, *(path for path in (cwd, *cwd.rglob("*")) if path.name != "name"))
    before = {path: path.stat().st_size for path in cwd.rglob("*.pt")}
    command = "cat data/samples plain.txt; echo x > data/samples; echo y > plain.txt; echo z > new;"
    command += "set -e; echo 1 > model.pt; rm -r output/best; echo 2 > output/last.pt;"
    command += "mv output output.old; mv model.pt output.old/last.pt; mv output.old/last.pt .;"
    command += "rm -r output.old; mkdir output; test $(cat last.pt) = 1"
    code = MOUNTED + (
        "if sys.argv[3] == 'an ordinary user':\n"
        f"    import pwd; u = pwd.getpwnam({someone.name!r}); os.setgroups([])\n"
        "    os.setgid(u.pw_gid); os.setuid(u.pw_uid)\n"
        "from pathlib import Path\n"
        "from gpurun.isolation.isolation_mode import Mode\n"
        "from gpurun.isolation.sandbox import LaunchSpec, Sandbox\n"
        "cwd = Path(sys.argv[1]).parent\n"
        f"argv = ('sh', '-c', {command + '; cat data/samples plain.txt new'!r})\n"
        "log = cwd.parent / 'log'\n"
        "spec = LaunchSpec(argv, dict(os.environ), cwd, (), (), Mode.OVERLAY, log)\n"
        "with Sandbox(spec) as sandbox:\n"
        "    code = sandbox.wait(240)\n"
        "print(code, sandbox.notes, log.read_text().split(),\n"
        "      [(cwd / n).read_text() for n in ('data/samples', 'plain.txt')], os.listdir(cwd))\n"
    )
    launcher = User(None, someone.python).start(
        code, str(cwd / "data"), str(cwd / "name"), who, str(cwd)
    )
    printed, _ = launcher.communicate(timeout=DEADLINE_SECONDS)
    assert printed.split("[", 1)[0].split() == ["0"]
    assert "['dataplainx', 'y', 'z'] ['data', 'plain']" in printed
    assert (f"{cwd}/data.bin is read-only in trials" in printed) is (who == "an ordinary user")
    assert "new" not in printed.rsplit("[", 1)[1]
    assert {path: path.stat().st_size for path in cwd.rglob("*.pt")} == before


RENAMES = """
import os, shutil
from pathlib import Path
from gpurun.runtime.trial import folder_renames
folder_renames.install()
os.rename("output", "output.old")
assert not Path("output").exists() and Path("output.old/checkpoints/last.pt").read_text()
os.makedirs("output")
os.replace(b"output.old", b"output")
Path("old").rename(Path("older")).replace("oldest")
shutil.move("oldest/deep", "deep")
assert Path("deep/a.txt").read_text() == "a" and not any(Path("oldest").iterdir())
for taken, refusal in (("output", OSError), ("log.txt", NotADirectoryError)):
    try: os.rename("deep", taken)
    except refusal: pass
    else: raise AssertionError(taken)
assert os.path.exists("deep/a.txt") and os.rename in os.supports_dir_fd
print("renamed")
"""


def test_a_trial_renames_folders_that_were_there_before_it(user: User, project: Path) -> None:
    """An ordinary user's overlay refuses that: a script that keeps its last output failed."""
    (project / "train.py").write_text(RENAMES)
    user.give(project / "train.py")
    before = tree(project)
    said = user.script(project, RENAMES)
    assert (said["log"], said["code"]) == ("renamed\n", 0)
    assert tree(project) == before


KERNELS = """
import os, sys
from pathlib import Path
from gpurun.isolation import syscalls
from gpurun.isolation.folder_snapshot import snapshot
from gpurun.isolation.namespaces import enter_mount_namespace
from gpurun.isolation.working_copy import WorkingCopy
project, scratch = Path(sys.argv[1]), Path(sys.argv[2])
enter_mount_namespace()
syscalls.mount("/proc", str(project / "proc"), flags=syscalls.MS_BIND | syscalls.MS_REC)
before = snapshot([project], exclude=[])
print(*sorted(Path(path).name for path in before.entries))
print(before.differences(snapshot([project], exclude=[])))
print(*sorted(os.listdir(WorkingCopy(project, scratch, (), project).cwd)))
"""


def test_the_kernels_files_below_the_working_folder_are_neither_compared_nor_copied(
    user: User, open_path: Path
) -> None:
    """As /proc is where a script starts in /: reading /proc/kmsg never ends."""
    project, scratch = open_path / "project", open_path / "project" / "scratch"
    for folder in (project / "proc", scratch):
        folder.mkdir(parents=True)
    (project / "train.py").touch()
    user.give(project, project / "train.py", project / "proc", scratch)
    looking = user.start(KERNELS, str(project), str(scratch))
    try:
        printed, _ = looking.communicate(timeout=60)
    finally:
        looking.kill()
    assert printed.splitlines() == ["project scratch train.py", "()", "train.py"]


TORCH = """
import os, torch, torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
torch.save({"w": torch.ones(3)}, "model.pt")
assert torch.load("model.pt")["w"].sum() == 3
loader = DataLoader(TensorDataset(torch.arange(64.0)), batch_size=8, num_workers=2)
assert sum(batch[0].sum().item() for batch in loader) == 2016
read, write = os.pipe()
child = os.fork()
rank = int(child == 0)
port = int(os.read(read, 5)) if rank else 0  # rank 0 takes any that is free
store = dist.TCPStore("127.0.0.1", port, 2, is_master=not rank, wait_for_workers=False)
if not rank: os.write(write, str(store.port).encode())
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
total = torch.ones(1); dist.all_reduce(total); assert total.item() == 2
dist.destroy_process_group()
if child == 0: os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print("trained")
"""


def test_torch_saves_loads_in_workers_and_reduces_among_processes_in_a_box(open_path: Path) -> None:
    cwd = open_path / "project"
    cwd.mkdir()
    said = ME.script(cwd, TORCH)
    assert said["log"].splitlines()[-1] == "trained", said
    assert [path.name for path in cwd.iterdir()] == ["train.py"]
