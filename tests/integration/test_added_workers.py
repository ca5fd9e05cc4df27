"""Loader workers that gpurun adds to a script that loads in its own process: it must not notice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpurun.records.spec import RunSpec, Setting
from tests.conftest import REPOSITORY
from tests.forked import run_recorded
from tests.integration.launched import ORPHAN_SECONDS, alive, wait_for
from tests.run_events import events

SETTINGS = {"loader_workers": 2}
LASTING = {**SETTINGS, "loader_persistent": True}

READING = """
import ctypes, io, json, os, sqlite3, sys, tarfile, tempfile, time, zipfile
import torch
from torch.utils.data import DataLoader, Dataset

COUNT, WIDTH, PIECES = 60, 512, 8
PATH = "records.bin"

def record(index):
    return bytes([index]) * WIDTH

def written(flags):
    with open(PATH, "wb") as file:
        file.write(b"".join(map(record, range(COUNT))))
    return os.open(PATH, flags)

def in_pieces(seek, read):
    def get(index):
        seek(index * WIDTH)
        pieces = []
        for _ in range(PIECES):
            pieces.append(read(WIDTH // PIECES))
            time.sleep(0.0003)  # another worker reads meanwhile
        return b"".join(pieces)
    return get

class Reader:
    __slots__ = ("number",)
    def get(self, index):
        os.lseek(self.number, index * WIDTH, os.SEEK_SET)
        return in_pieces(lambda _: None, lambda size: os.read(self.number, size))(index)

def a_descriptor_in_slots():
    reader = Reader()
    reader.number = written(os.O_RDONLY)
    return reader.get

def a_file_in_a_closure():
    file = open(written(os.O_RDONLY), "rb", buffering=0)
    return in_pieces(file.seek, file.read)

def a_buffered_file_that_was_read():
    file = open(written(os.O_RDWR), "r+b", buffering=50)
    file.read(70)
    return in_pieces(file.seek, file.read)

def a_temporary_file():
    file = tempfile.TemporaryFile(buffering=0)
    file.write(b"".join(map(record, range(COUNT))))
    return in_pieces(file.seek, file.read)

def a_deleted_file():
    file = open(written(os.O_RDONLY), "rb", buffering=0)
    os.unlink(PATH)
    return in_pieces(file.seek, file.read)

def a_stream_of_c():
    libc = ctypes.CDLL(None)
    libc.fdopen.restype = ctypes.c_void_p
    stream = ctypes.c_void_p(libc.fdopen(written(os.O_RDONLY), b"rb"))
    libc.setvbuf(stream, None, 2, 0)
    libc.fseek.argtypes = [ctypes.c_void_p, ctypes.c_long, ctypes.c_int]
    def read(size):
        into = ctypes.create_string_buffer(size)
        libc.fread(into, 1, size, stream)
        return into.raw
    return in_pieces(lambda offset: libc.fseek(stream, offset, 0), read)

def a_zip_archive():
    with zipfile.ZipFile(PATH, "w") as archive:
        for index in range(COUNT):
            archive.writestr(str(index), record(index))
    archive = zipfile.ZipFile(PATH)
    def get(index):
        with archive.open(str(index)) as member:
            return in_pieces(lambda _: None, member.read)(index)
    return get

def a_tar_archive():
    with tarfile.open(PATH, "w") as archive:
        for index in range(COUNT):
            member = tarfile.TarInfo(str(index))
            member.size = WIDTH
            archive.addfile(member, io.BytesIO(record(index)))
    archive = tarfile.open(PATH)
    return lambda index: in_pieces(lambda _: None, archive.extractfile(str(index)).read)(index)

class Records(Dataset):
    def __init__(self, get):
        self.get = get
    def __len__(self):
        return COUNT
    def __getitem__(self, index):
        return torch.frombuffer(bytearray(self.get(index)), dtype=torch.uint8), index

told = {}
for kind in (KINDS,):
    loader = DataLoader(Records(kind()), batch_size=4, shuffle=True)
    model = torch.nn.Linear(WIDTH, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    seen = wrong = 0
    for epoch in range(2):
        for x, index in loader:
            model(x.float()).mean().backward()
            optimizer.step()
            seen += len(x)
            wrong += int((x != index[:, None]).any(1).sum())
    told[kind.__name__] = {"workers": loader.num_workers, "seen": seen, "wrong": wrong}
print(json.dumps(told))
"""


def run(
    folder: Path, script: str, settings: dict[str, Any], code: int = 0
) -> tuple[subprocess.CompletedProcess[bytes], Path]:
    """A script that ends with this code under settings, and the folder of its record."""
    (folder / "train.py").write_text(script)
    record = Path(tempfile.mkdtemp(prefix="run-", dir=folder))
    turned = tuple(Setting(name, value) for name, value in settings.items())
    done = run_recorded(["train.py"], folder, RunSpec(str(record), os.getpid(), turned))
    assert done.returncode == code, done.stderr.decode()
    assert b"Exception ignored" not in done.stderr, done.stderr.decode()
    assert code or not done.stderr, done.stderr.decode()
    assert events(record, "hook") == []
    return done, record


KINDS = (
    "a_descriptor_in_slots", "a_file_in_a_closure", "a_buffered_file_that_was_read",
    "a_temporary_file", "a_deleted_file", "a_stream_of_c", "a_zip_archive", "a_tar_archive",
)  # fmt: skip


def test_samples_are_the_scripts_own_whatever_holds_the_open_file(tmp_path: Path) -> None:
    done, _ = run(tmp_path, READING.replace("KINDS", ", ".join(KINDS)), SETTINGS)
    right = {"workers": 2, "seen": 120, "wrong": 0}
    assert json.loads(done.stdout) == dict.fromkeys(KINDS, right)


UNREADABLE = """
def a_file_of_a_process_that_is_gone():
    child = os.fork()
    if child == 0:
        time.sleep(60)
    file = open(f"/proc/{child}/maps", "rb")
    os.kill(child, 9)
    os.waitpid(child, 0)
    return lambda index: record(index) if file else None
"""


def test_a_file_that_cannot_be_opened_again_gets_no_workers_by_name(tmp_path: Path) -> None:
    before, _, after = READING.partition("class Records(")
    script = before + UNREADABLE + "class Records(" + after
    kind = "a_file_of_a_process_that_is_gone"
    done, record = run(tmp_path, script.replace("KINDS", kind), SETTINGS)
    assert json.loads(done.stdout) == {kind: {"workers": 0, "seen": 120, "wrong": 0}}
    (event,) = events(record, "knob")
    assert event["outcome"] == "skipped"
    assert "/maps cannot be opened again" in event["detail"]


OPENED_LATER = """
loader = DataLoader(Records(record), batch_size=4)
get = a_file_of_a_process_that_is_gone()
for x, index in loader:
    pass
print("read on")
"""


def test_a_worker_that_would_share_a_position_after_all_ends_with_a_line_that_names_the_setting(
    tmp_path: Path,
) -> None:
    """The file was opened after the loader was built, when nothing spoke against workers."""
    before, _, after = READING.partition("class Records(")
    records = "class Records(" + after.partition("told = {}")[0]
    script = before + UNREADABLE + records + OPENED_LATER
    done, _ = run(tmp_path, script, SETTINGS, code=1)
    assert b"read on" not in done.stdout
    said = done.stderr.decode().splitlines()
    assert any("setting loader_workers" in x and "/maps cannot be opened again" in x for x in said)
    assert any("DataLoader worker" in line for line in said)


TOLD = """
import json, multiprocessing, os, signal, subprocess, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it

answered = []
def note(number, frame):
    answered.append(os.getpid())
    with open("answered", "a") as file:
        file.write(f"{os.getpid()}\\n")

class Slow(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        with open("readers", "a") as file:
            file.write(f"{os.getpid()}\\n")
        time.sleep(BLOCKED if index == 40 else 0.002)
        return torch.full((4,), float(index)), index

def tell(often, number):
    # the shell and its `sleep` are of the group, too
    words = f"trap '' {number}; for i in $(seq {often}); do sleep 0.03; kill -{number} 0; done"
    subprocess.Popen(["sh", "-c", words])

def train(told):
    loader = DataLoader(Slow(), batch_size=4, shuffle=False)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    seen = []
    for epoch in range(4):
        for x, index in loader:
            if epoch == 0 and index[0] == 8:
                told()
            model(x).mean().backward()
            optimizer.step()
            seen += index.tolist()
    return seen, loader.num_workers

if __name__ == "__main__":
    METHOD and torch.multiprocessing.set_start_method(METHOD)
    BODY
"""


def telling(body: str, blocked: float = 0.002, method: str = "") -> str:
    """A script that is told something by all processes' signal."""
    script = TOLD.replace("BLOCKED", str(blocked)).replace("METHOD", repr(method))
    return script.replace("BODY", body.replace("\n", "\n    "))


def readers(folder: Path) -> set[int]:
    """The processes that loaded samples."""
    return set(map(int, (folder / "readers").read_text().split()))


def nothing_is_left(folder: Path) -> bool:
    """Whether all processes that loaded samples end."""
    return wait_for(lambda: not any(map(alive, readers(folder))), ORPHAN_SECONDS)


@pytest.mark.parametrize(
    ("number", "settings", "method"),
    [
        (signal.SIGTERM, SETTINGS, ""),
        (signal.SIGUSR1, LASTING, ""),
        pytest.param(signal.SIGTERM, LASTING, "", marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, SETTINGS, "", marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, LASTING, "", marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, SETTINGS, "", marks=pytest.mark.slow),
        pytest.param(signal.SIGUSR1, SETTINGS, "", marks=pytest.mark.slow),
        pytest.param(signal.SIGUSR2, SETTINGS, "", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, LASTING, "spawn", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, LASTING, "forkserver", marks=pytest.mark.slow),
    ],
)
def test_a_signal_to_all_processes_of_a_job_is_answered_by_the_script_alone(
    tmp_path: Path, number: signal.Signals, settings: dict[str, Any], method: str
) -> None:
    body = f"""
signal.signal({int(number)}, note)
seen, workers = train(lambda: tell(15, {int(number)}))
print(json.dumps([seen, workers, os.getpid()]))
"""
    done, _ = run(tmp_path, telling(body, method=method), settings)
    seen, workers, script = json.loads(done.stdout)
    assert (seen, workers) == ([*range(64)] * 4, 2)
    assert script not in readers(tmp_path)
    assert set((tmp_path / "answered").read_text().split()) == {str(script)}
    assert nothing_is_left(tmp_path)


LEAVING = {
    "in its handler": (
        """
def leave(number, frame):
    open("rescued", "w").close()
    sys.exit(3)
signal.signal(signal.SIGTERM, leave)
train(lambda: tell(1, 15))
""",
        3,
    ),
    "by an exception": (
        """
try:
    train(lambda: tell(1, 2))
finally:
    open("rescued", "w").close()
""",
        -signal.SIGINT,
    ),
    "at once": ('open("rescued", "w").close()\ntrain(lambda: tell(1, 15))', -signal.SIGTERM),
    "with its loader alive": (
        """
loader = DataLoader(Slow(), batch_size=4)
batches = iter(loader)
x, _ = next(batches)
torch.nn.Linear(4, 1)(x).mean().backward()
open("rescued", "w").close()
""",
        0,
    ),
}


@pytest.mark.parametrize("how", LEAVING)
@pytest.mark.parametrize(
    "settings",
    [SETTINGS, pytest.param(LASTING, marks=pytest.mark.slow)],  # quick twin: the signals, above
    ids=["", "lasting"],
)
@pytest.mark.parametrize(
    "blocked", [pytest.param(0.002, marks=pytest.mark.slow), 1e6], ids=["", "blocked"]
)
def test_a_script_ends_as_without_workers_though_one_of_them_is_blocked(
    tmp_path: Path, how: str, settings: dict[str, Any], blocked: float
) -> None:
    body, code = LEAVING[how]
    run(tmp_path, telling(body, blocked), settings, code)
    assert (tmp_path / "rescued").exists()
    assert nothing_is_left(tmp_path)


def test_a_script_can_end_all_its_children(tmp_path: Path) -> None:
    body = """
loader = DataLoader(Slow(), batch_size=4)
batches = iter(loader)
next(batches)
for child in multiprocessing.active_children():
    child.terminate()
    child.join()
print(json.dumps(len(multiprocessing.active_children())))
"""
    done, _ = run(tmp_path, telling(body, 1e6), SETTINGS)
    assert json.loads(done.stdout) == 0
    assert nothing_is_left(tmp_path)


@pytest.mark.forked
def test_a_script_that_fails_under_added_workers_is_told_how_to_run_without(
    tmp_path: Path, gpurun: Callable[..., subprocess.CompletedProcess[bytes]]
) -> None:
    body = """
class Alone(Slow):
    def __getitem__(self, index):
        in_worker = torch.utils.data.get_worker_info() is not None
        assert not (in_worker and os.path.exists("told")), "not meant for workers"
        return torch.full((4,), float(index)), index
Slow = Alone
train(lambda: open("told", "w").close())  # later than any rehearsal
"""
    (tmp_path / "train.py").write_text(telling(body))
    (tmp_path / "settings.json").write_text(json.dumps({"settings": LASTING}))
    failed = gpurun("--settings", "settings.json", "train.py")
    assert failed.returncode == 1
    assert b"not meant for workers" in failed.stderr
    told = b"the script failed while loader_workers, loader_persistent applied: "
    assert told + b"--without loader_workers tries it without" in failed.stderr
    done = gpurun("--settings", "settings.json", "--without", "loader_workers", "train.py")
    assert done.returncode == 0
    assert b"the script failed" not in done.stderr


def test_workers_of_past_epochs_leave_no_open_files(tmp_path: Path) -> None:
    body = """
import gc
gc.disable()
counts = []
for epoch in range(4):
    train(lambda: None)
    counts.append(len(os.listdir("/proc/self/fd")))
print(json.dumps(counts))
"""
    done, _ = run(tmp_path, telling(body), SETTINGS)
    counts = json.loads(done.stdout)
    assert counts[-1] < counts[0] + 3 * 8, "each training has had 8 workers"


OLDER_TORCH = """
import atexit, os
from torch.utils.data import DataLoader
from torch.utils.data import dataloader as loaders

iterators = loaders._MultiProcessingDataLoaderIter
iterators._clean_up_worker = staticmethod(lambda worker: ended.append(not worker.is_alive()))

from gpurun.knobs.loading.applied.loader_iterators import end_workers_at_exit

ended, calls = [], []
for _ in range(3):  # three knobs ask for it
    end_workers_at_exit()
atexit.register = calls.append
loader = DataLoader(range(40), num_workers=2, persistent_workers=True, pin_memory=True)
kept = iter(loader)
for _ in range(3):
    loader._iterator = None
    next(iter(loader))
pid = os.fork()
if not pid:
    try:
        iterators._clean_up_worker(kept._workers[0])  # the parent's: not for a child to end
    finally:
        os._exit(0)
os.waitpid(pid, 0)
print(all(worker.is_alive() for worker in kept._workers), next(kept).item())
for worker in [*kept._workers, *loader._iterator._workers]:
    iterators._clean_up_worker(worker)  # as torch 2.4 to 2.11 registers it for each worker
print(ended, len(calls))
"""


def test_workers_end_before_torch_waits_for_each_and_openings_register_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", OLDER_TORCH],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == ["True 0", "[True, True, True, True] 0"], done.stderr
