"""Workers write into shared memory that they used before, and no batch is ever written over.

There is no page-locked memory without a GPU: a copy stands in for it, made by torch's own thread
that pins what real workers send. The real thing is tested on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.knob_runs import KnobRun, bare, run_under

HEAD = """
import collections, gc, json, os, sys, time
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

class Processor:
    type = "cpu"

torch.set_num_threads(1)
torch.cuda.is_available = lambda: True
torch.cuda.set_device = lambda device: None
torch.cuda.current_device = lambda: 0
if hasattr(torch, "accelerator"):
    torch.accelerator.is_available = lambda: True
    torch.accelerator.current_accelerator = lambda: Processor
    torch.accelerator.current_device_index = lambda: 0
    torch.accelerator.set_device_index = lambda index: None

def copied(tensor, device=None):
    time.sleep(0.002)  # what was sent waits, and its worker goes on
    return tensor.clone()

torch.Tensor.pin_memory = copied
SHAPE = (3, 64, 64)
found = collections.Counter()

class Rows(Dataset):
    length = 320
    def __len__(self):
        return self.length
    def __getitem__(self, index):
        return torch.full(SHAPE, float(index)), index

def wrong(x, names):
    return int((x != names.view(-1, *[1] * (x.dim() - 1))).sum())

def file_of(x):
    return os.fstat(x.untyped_storage()._share_fd_cpu_()[0]).st_ino

files = set()

def and_file(samples):
    '''What torch collates, and the file that the batch lies in.'''
    x, names = default_collate(samples)
    return x, names, file_of(x)

def look(batch):
    x, names, file = batch
    found["wrong"] += wrong(x, names)
    found["batches"] += 1
    files.add(file)

def loader(data=None, **more):
    arguments = {"batch_size": 8, "num_workers": 2, "pin_memory": True, "collate_fn": and_file}
    return DataLoader(data or Rows(), **{**arguments, **more})

def tell(**more):
    print(json.dumps({**found, "files": len(files), **more}))
"""

Run = Callable[[str], KnobRun]


@pytest.fixture
def run(tmp_path: Path, gpurun: Callable[..., Any]) -> Run:
    """Run a script that begins with `HEAD` with the knob turned."""
    return lambda script: run_under(gpurun, tmp_path, HEAD + script, {"loader_buffers": "reuse"})


EPOCHS = """
batches = loader(MORE)
for epoch in range(3):
    for batch in batches:
        look(batch)
tell()
"""


@pytest.mark.parametrize("more", ["", "persistent_workers=True", "prefetch_factor=6, timeout=60"])
def test_few_segments_carry_every_batch_right(run: Run, more: str) -> None:
    done = run(EPOCHS.replace("MORE", more))
    assert done.outcomes("loader_buffers") == ["applied"]
    assert (done.printed["wrong"], done.printed["batches"]) == (0, 120)
    assert done.printed["files"] < 60


def test_without_the_knob_each_batch_is_a_new_segment(tmp_path: Path) -> None:
    """The count above means something."""
    assert bare(tmp_path, HEAD + EPOCHS.replace("MORE", ""))["files"] == 120


BYTES = """
import hashlib
Point = collections.namedtuple("Point", ["x", "noise"])

class Mixed(Rows):
    def __getitem__(self, index):
        rows = torch.randn(SHAPE)
        return {
            "point": Point(rows, torch.rand(SHAPE).numpy()),
            "text": str(index), "again": [rows, rows], "flipped": rows.permute(2, 0, 1),
            "half": rows.half(), "mask": rows > 0, "number": index / 3, "empty": torch.empty(0),
        }

def digest(value):
    if isinstance(value, torch.Tensor):
        described = (value.shape, value.stride(), value.dtype, value.untyped_storage().nbytes())
        return repr(described).encode() + value.contiguous().numpy().tobytes()
    if isinstance(value, dict):
        return b"".join(key.encode() + digest(part) for key, part in value.items())
    if isinstance(value, (list, tuple)):
        return type(value).__name__.encode() + b"".join(map(digest, value))
    return repr(value).encode()

torch.manual_seed(0)
total = hashlib.sha256()
batches = loader(Mixed(), shuffle=True, collate_fn=None)
for epoch in range(2):
    for batch in batches:
        total.update(digest(batch))
print(json.dumps([total.hexdigest(), torch.rand(1).item(), repr(batches.pin_memory)]))
"""


def test_batches_of_every_shape_are_the_same_bytes_as_without_the_knob(
    run: Run, tmp_path: Path
) -> None:
    done = run(BYTES)
    assert done.outcomes("loader_buffers") == ["applied"]
    assert done.printed == bare(tmp_path, HEAD + BYTES)


HELD = {
    "a type that torch does not pin": """
class Own:
    def __init__(self, x): self.x = x
def collate(samples):
    x, names = default_collate(samples)
    return Own(x), names
def part(batch): return batch[0].x, batch[1]
""",
    "a view in such a type, beside what is pinned": """
class Own:
    def __init__(self, x): self.x = x
def collate(samples):
    x, names = default_collate(samples)
    return x, names, Own(x[1:])
def part(batch): return batch[2].x, batch[1][1:]
""",
    "a type that pins itself and keeps what it had": """
from torch.utils.data._utils.pin_memory import pin_memory
class Own:
    def __init__(self, x): self.x = x
    def pin_memory(self):
        self.pinned = pin_memory([self.x])
        return self
def collate(samples):
    x, names = default_collate(samples)
    return Own(x), names
def part(batch): return batch[0].x, batch[1]
""",
    "a mapping that keeps what it had": """
class Own(dict):
    def __copy__(self):
        copy = Own(self)
        copy.before = self["x"].numpy()
        return copy
def collate(samples):
    x, names = default_collate(samples)
    return Own(x=x, names=names)
def part(batch): return torch.from_numpy(batch.before), batch["names"]
""",
    "a tensor that is pinned already": """
torch.Tensor.pin_memory = lambda tensor, device=None: tensor
collate = default_collate
def part(batch): return batch
""",
}


@pytest.mark.parametrize(
    "held",
    [
        pytest.param(held, id=name, marks=[pytest.mark.slow] if number > 0 else [])
        for number, (name, held) in enumerate(HELD.items())
    ],
)
def test_what_still_lies_in_a_segment_is_never_written_over(run: Run, held: str) -> None:
    script = """
kept = []
for batch in loader(collate_fn=collate):
    kept.append(part(batch))
    del batch
    gc.collect()
    found["wrong"] += sum(wrong(x, names) for x, names in kept)
found["batches"] = len(kept)
tell()
"""
    done = run(held + script)
    assert (done.printed["wrong"], done.printed["batches"]) == (0, 40)


RESENT = """
class Chunks(IterableDataset):
    '''Collates by itself, hands each batch out again, also in parts, and drops it then.'''
    def __iter__(self):
        rows, kept = Rows(), []
        for start in range(0, 320, 8):
            kept.append(default_collate([rows[i] for i in range(start, start + 8)]))
            yield kept[-1]
            if len(kept) == 3:
                yield [part[2:6] for part in kept[1]]
                yield kept.pop(0)

for x, names in loader(Chunks(), batch_size=None, collate_fn=None):
    found["wrong"] += wrong(x, names)
    found["batches"] += 1
tell()
"""


def test_what_a_data_set_keeps_and_sends_again_is_never_written_over(run: Run) -> None:
    done = run(RESENT)
    assert done.printed["wrong"] == 0
    assert done.printed["batches"] > 200


def test_what_a_worker_keeps_is_never_written_over(run: Run) -> None:
    script = """
class Kept:
    '''Each batch comes with one that its worker has kept, as tensor, array or view.'''
    kept = []
    def __call__(self, samples):
        x, names = default_collate(samples)
        self.kept.append(((x, x.numpy(), x[:])[len(self.kept) % 3], names))
        old = [wrong(torch.as_tensor(x), names) for x, names in self.kept]
        if len(self.kept) > 12:
            del self.kept[:6]
        return x, names, sum(old)

for x, names, old in loader(collate_fn=Kept()):
    found["wrong"] += wrong(x, names) + old
    found["batches"] += 1
tell()
"""
    done = run(script)
    assert (done.printed["wrong"], done.printed["batches"]) == (0, 40)


def test_loaders_left_early_opened_twice_and_at_once(run: Run) -> None:
    script = """
for persistent in (False, True):
    first, second = loader(persistent_workers=persistent), loader()
    for epoch in range(4):
        for number, batch in enumerate(first):
            look(batch)
            if number == 7:
                break
    for one, other, third in zip(loader(), second, second):
        look(one), look(other), look(third)
    del first, second
    gc.collect()
mapped = open("/proc/self/maps").read().count("/dev/shm/torch_")
tell(mapped=mapped)
"""
    done = run(script)
    assert done.outcomes("loader_buffers") == ["applied"]
    assert done.printed["wrong"] == 0
    assert done.printed["batches"] == 2 * (4 * 8 + 3 * 40)
    assert done.printed["mapped"] == 0, "a loader that is gone keeps no memory"


def test_batches_of_many_sizes_take_a_bounded_number_of_segments(run: Run) -> None:
    script = """
class Padded(Rows):
    length = 1600
    def __getitem__(self, index):
        return torch.full((9000 + 611 * (index // 8 * 37 % 100),), float(index)), index

class Counting:
    def __call__(self, samples):
        x, names, file = and_file(samples)
        return x, names, file, open("/proc/self/maps").read().count("/dev/shm/torch_")

most = 0
for *batch, mapped in loader(Padded(), collate_fn=Counting()):
    look(batch)
    most = max(most, mapped)
tell(mapped=most)
"""
    done = run(script)
    assert done.outcomes("loader_buffers") == ["applied"]
    assert (done.printed["wrong"], done.printed["batches"]) == (0, 200)
    assert done.printed["files"] < 100
    assert done.printed["mapped"] < 40


def test_segments_that_never_come_back_are_given_up(run: Run) -> None:
    script = """
class Own:
    def __init__(self, x): self.x = x

class Never:
    def __call__(self, samples):
        x, names, file = and_file(samples)
        return Own(x), names, file, open("/proc/self/maps").read().count("/dev/shm/torch_")

class More(Rows):
    length = 1600

for own, names, file, mapped in loader(More(), collate_fn=Never()):
    look((own.x, names, file))
tell(mapped=mapped)
"""
    done = run(script)
    assert done.outcomes("loader_buffers") == []
    assert (done.printed["wrong"], done.printed["files"]) == (0, 200)
    assert done.printed["mapped"] < 5


def test_where_shared_memory_is_scarce_none_is_kept(run: Run) -> None:
    script = """
from types import SimpleNamespace
free = iter([100] * 2 + [10] * 1000)
os.statvfs = lambda path: SimpleNamespace(f_frsize=1 << 20, f_blocks=100, f_bavail=next(free))
class Counting:
    def __call__(self, samples):
        x, names, file = and_file(samples)
        return x, names, file, open("/proc/self/maps").read().count("/dev/shm/torch_")
class Growing(Rows):
    def __getitem__(self, index):
        return torch.full((1 + index // 8, 3, 64, 64), float(index)), index
for *batch, mapped in loader(Growing(), num_workers=1, collate_fn=Counting()):
    look(batch)
tell(mapped=mapped)
"""
    done = run(script)
    assert (done.printed["wrong"], done.printed["batches"]) == (0, 40)
    assert done.printed["files"] > 35
    assert done.printed["mapped"] < 4


def test_the_other_sharing_strategy_is_left_alone(run: Run) -> None:
    script = """
def strategy(worker):
    torch.multiprocessing.set_sharing_strategy("file_system")
for x, names in loader(worker_init_fn=strategy, collate_fn=None):
    found["wrong"] += wrong(x, names)
    found["batches"] += 1
tell()
"""
    done = run(script)
    assert done.outcomes("loader_buffers") == []
    assert (done.printed["wrong"], done.printed["batches"]) == (0, 40)


def test_unfit_loaders_stay_as_they_are_with_the_reason_in_the_record(run: Run) -> None:
    script = """
class Mine(DataLoader):
    pass
if __name__ == "__main__":
    Mine(Rows(), num_workers=2, pin_memory=True)
    loaders = [
        loader(pin_memory=False),
        loader(num_workers=0),
        loader(multiprocessing_context="spawn", collate_fn=None, num_workers=1),
    ]
    for x, names, *_ in loaders[-1]:
        found["wrong"] += wrong(x, names)
    tell()
"""
    done = run(script)
    assert set(done.outcomes("loader_buffers")) == {"skipped"}
    details = [detail.split(": ")[1] for _, _, detail in done.knobs]
    assert details == [
        "a subclass of DataLoader",
        "its batches are not pinned",
        "no workers",
        "its workers are not forked",
    ]
    assert done.printed["wrong"] == 0


def test_a_worker_that_dies_is_torchs_own_error_with_no_line_of_ours(run: Run) -> None:
    script = """
import re
import traceback
class Fails(Rows):
    def __getitem__(self, index):
        if index == 150:
            raise KeyError("lost")
        if index == 250:
            os._exit(3)
        return super().__getitem__(index)

class NotStacked(Rows):
    def __getitem__(self, index):
        return torch.zeros(70000 + index), index

errors = []
for data in (Fails(), torch.utils.data.Subset(Fails(), range(160, 320)), NotStacked()):
    try:
        for batch in loader(data):
            look(batch)
    except Exception as error:
        ours = re.search("gpurun/(knobs|runtime)/", traceback.format_exc())
        errors.append([type(error).__name__, ours is not None])
tell(errors=errors)
"""
    done = run(script)
    assert done.printed["wrong"] == 0
    assert done.printed["errors"] == [
        ["KeyError", False],
        ["RuntimeError", False],
        ["RuntimeError", False],
    ]


@pytest.mark.slow
def test_a_process_forked_meanwhile_reads_what_it_has_and_lends_nothing(run: Run) -> None:
    script = """
class Forking(Rows):
    '''Its workers fork children that collate as well.'''
    length = 80
    children = []
    def __getitem__(self, index):
        child = os.fork()
        if child == 0:
            first, second = (file_of(default_collate([Rows()[index]] * 8)[0]) for _ in range(2))
            os._exit(first == second)
        self.children.append(child)
        bad = 0
        while len(self.children) > 8:
            bad += os.waitstatus_to_exitcode(os.waitpid(self.children.pop(0), 0)[1])
        return *super().__getitem__(index), bad

def and_bad(samples):
    x, names, bad = default_collate(samples)
    return x, names, bad.sum().item()

children = []
for x, names, bad in loader(Forking(), collate_fn=and_bad):
    look((x, names, bad))
    found["wrong"] += bad
    child = os.fork()
    if child == 0:
        os._exit(min(1, wrong(x, names)))
    children.append(child)
found["wrong"] += sum(os.waitstatus_to_exitcode(os.waitpid(x, 0)[1]) for x in children)
tell()
"""
    done = run(script)
    assert (done.printed["wrong"], done.printed["batches"]) == (0, 10)


def test_it_works_beside_batches_that_are_copied_ahead(run: Run) -> None:
    script = """
from types import SimpleNamespace
from torch.utils.data._utils import pin_memory
from gpurun.knobs.applied.copies_ahead import CopiesAhead
from gpurun.knobs.applied.copies_ahead import BatchesAhead

class Clones:
    def begin(self, tensor, device): return tensor.clone()
    def finish(self, begun, device, blocking): return begun

told = []
hooks = SimpleNamespace(applied=lambda detail: told.append(detail), skipped=print)
BatchesAhead(CopiesAhead(Clones()), hooks, "cpu").install(pin_memory)
for x, names, file in loader():
    look((x.to("cpu"), names, file))
tell(ahead=len(told))
"""
    done = run(script)
    assert done.outcomes("loader_buffers") == ["applied"]
    assert (done.printed["wrong"], done.printed["batches"]) == (0, 40)
    assert done.printed["files"] < 25
    assert done.printed["ahead"] > 30
