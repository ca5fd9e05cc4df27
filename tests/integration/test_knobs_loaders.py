"""Loader and thread knobs in real scripts, seen from inside the script and from the record."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.knob_runs import KnobRun, run_under

HEAD = """
import json, os, sys
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

class Squares(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return torch.full((4,), float(index)), os.getpid()

def train(loader, epochs=2):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    seen, processes = [], []
    for _ in range(epochs):
        for x, pid in loader:
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += x[:, 0].int().tolist()
            processes.append(sorted(set(pid.tolist())))
    return {"seen": seen, "processes": processes, "me": os.getpid()}
"""

RunKnobs = Callable[..., KnobRun]


@pytest.fixture
def run_knobs(tmp_path: Path, gpurun: Callable[..., Any]) -> RunKnobs:
    """Run a script that begins with `HEAD` under settings."""
    return lambda script, settings, training=(): run_under(
        gpurun, tmp_path, HEAD + script, settings, training
    )


PLAIN = """
torch.manual_seed(0)
loader = DataLoader(Squares(), batch_size=8, shuffle=True)
print(json.dumps({**train(loader), "workers": loader.num_workers,
                  "prefetch": loader.prefetch_factor, "next_draw": torch.rand(1).item()}))
"""


def test_workers_load_the_same_samples_in_the_same_order(run_knobs: RunKnobs) -> None:
    bare = run_knobs(PLAIN, {}).printed
    settings = {"loader_workers": 2, "loader_persistent": True, "loader_prefetch": 4}
    run = run_knobs(PLAIN, settings)
    tuned = run.printed
    assert (tuned["workers"], tuned["prefetch"]) == (2, 4)
    assert len({pid for batch in tuned["processes"] for pid in batch}) == 2
    assert tuned["me"] not in {pid for batch in tuned["processes"] for pid in batch}
    assert {outcome for _, outcome, _ in run.knobs} == {"applied"}
    # lasting workers cost no draw of the script's generator
    assert tuned["processes"][0] == tuned["processes"][8]
    assert tuned["seen"] == bare["seen"]
    assert tuned["next_draw"] == bare["next_draw"]


TOGETHER = """
from itertools import cycle

def order(seen, batches):
    for both in batches:
        pairs = both if isinstance(both, tuple) else [both]
        seen += [x[:, 0].int().tolist() for x, _ in pairs]
        seen.append(torch.rand(1).item())

torch.manual_seed(0)
loader, second, checks = (
    DataLoader(Squares(), batch_size=8, shuffle=True, num_workers=WORKERS) for _ in range(3)
)
seen = []
endless = cycle(second)
for epoch in range(3):
    order(seen, loader)
    seen.append(torch.rand(1).item())
    order(seen, zip(loader, second))
    opened = iter(loader)
    seen.append(torch.rand(1).item())
    order(seen, checks)
    order(seen, opened)
    order(seen, zip(loader, endless))
print(json.dumps([seen, torch.rand(1).item(), loader.num_workers]))
"""


@pytest.mark.parametrize(("before", "lasting"), [(0, False), (0, True), (1, True)])
def test_loaders_that_are_read_together_shuffle_as_without_added_workers(
    run_knobs: RunKnobs, before: int, lasting: bool
) -> None:
    """They draw from one generator, as does the script between epochs and while one is open."""
    script = TOGETHER.replace("WORKERS", str(before))
    seen, next_draw, _ = run_knobs(script, {}).printed
    settings = {"loader_workers": 2, "loader_prefetch": 4}
    settings |= {"loader_persistent": True} if lasting else {}
    assert run_knobs(script, settings).printed == [seen, next_draw, 2]


CHANGING = """
OFFSET = 0
class Growing(Dataset):
    level = 0
    def __init__(self):
        self.size, self.table = 0, torch.zeros(1)
    def __len__(self):
        return 16
    def __getitem__(self, index):
        value = index + self.size + self.level + OFFSET + self.table.item()
        return torch.full((4,), value), os.getpid()

torch.manual_seed(0)
data = Growing()
loader = DataLoader(data, batch_size=8, shuffle=True)
runs = []
for epoch in range(4):
    EPOCH
    runs.append(train(loader, 1))
print(json.dumps({"seen": [r["seen"] for r in runs], "next_draw": torch.rand(1).item(),
                  "processes": len({pid for r in runs for p in r["processes"] for pid in p})}))
"""


@pytest.mark.parametrize(
    "change",
    [
        "data.size = 100 * (epoch // 2)",
        "Growing.level = 100 * (epoch // 2)",
        pytest.param("OFFSET = 100 * (epoch // 2)", marks=pytest.mark.slow),
        pytest.param("epoch == 2 and data.table.add_(5)", marks=pytest.mark.slow),
    ],
)
def test_lasting_workers_see_what_the_script_changes_between_epochs(
    run_knobs: RunKnobs, change: str
) -> None:
    script = CHANGING.replace("EPOCH", change)
    bare = run_knobs(script, {}).printed
    tuned = run_knobs(script, {"loader_workers": 1, "loader_persistent": True}).printed
    assert tuned["seen"] == bare["seen"]
    assert tuned["next_draw"] == bare["next_draw"]
    assert tuned["processes"] < 4, "they live on where nothing changed"


PEEKING = """
class Table(Dataset):
    def __init__(self):
        self.x = torch.arange(64.).reshape(64, 1)
    def __len__(self):
        return len(self.x)
    def __getitem__(self, index):
        return self.x[index].repeat(4), os.getpid()

loader = DataLoader(Table(), batch_size=8)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
epochs, processes = [], set()
for epoch in range(4):
    seen = []
    for x, pid in loader:
        model(x).sum().backward()
        optimizer.step()
        seen.append(int(x[0, 0]))
        processes |= set(pid.tolist())
        if PEEK:
            next(iter(loader))
        if LEAVE:
            break
    epochs.append(seen)
print(json.dumps([epochs, len(processes)]))
"""


@pytest.mark.parametrize(
    ("peek", "leave", "workers"),
    [
        ("len(seen) in (3, 8)", "False", 4),
        ("False", "len(seen) == 3", 4),
        ("False", "False", 1),
    ],
)
def test_lasting_workers_leave_an_epoch_to_its_reader(
    run_knobs: RunKnobs, peek: str, leave: str, workers: int
) -> None:
    script = PEEKING.replace("PEEK", peek).replace("LEAVE", leave)
    expected = run_knobs(script, {}).printed
    found = run_knobs(script, {"loader_workers": 1, "loader_persistent": True}).printed
    assert found == [expected[0], workers], "the loop's own x is no global of the data set"


AMID = """
class Growing(Squares):
    size = 0
data = Growing()
loader = DataLoader(data, batch_size=8)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for epoch in range(3):
    for step, (x, _) in enumerate(loader):
        model(x).sum().backward()
        optimizer.step()
        if step == WHEN:
            data.size = 1
        if step == LAST:
            break
print(json.dumps([repr(loader.num_workers)]))
"""


@pytest.mark.parametrize(
    ("when", "last", "outcome", "workers"),
    [
        ("3", "99", "revoked", "0"),
        ("1", "5", "revoked", "0"),
        ("5", "99", "revoked", "0"),
        ("99", "99", "applied", "2"),
    ],
)
def test_a_data_set_that_changes_during_an_epoch_is_noticed(
    run_knobs: RunKnobs, when: str, last: str, outcome: str, workers: str
) -> None:
    script = AMID.replace("WHEN", when).replace("LAST", last)
    run = run_knobs(script, {"loader_workers": 2})
    assert run.printed == [workers]
    assert run.outcomes("loader_workers")[-1] == outcome
    if outcome == "revoked":
        assert "during an epoch" in run.knobs[-1][2]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="there is one core")
def test_more_workers_than_a_container_has_cores_are_no_warning(run_knobs: RunKnobs) -> None:
    """Torch warns above the number of cores that the process may use."""
    one_core = "import os, warnings\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    script = one_core + "warnings.simplefilter('error')\n" + PLAIN
    assert run_knobs(script, {"loader_workers": 2}).printed["workers"] == 2


def test_a_scripts_own_persistent_workers_keep_torchs_behaviour(run_knobs: RunKnobs) -> None:
    script = PLAIN.replace("shuffle=True", "shuffle=True, num_workers=1, persistent_workers=True")
    bare = run_knobs(script, {}).printed
    tuned = run_knobs(script, {"loader_workers": 2}).printed
    assert tuned["workers"] == 2
    assert tuned["seen"] == bare["seen"]


REUSED = """
import time

class Filled(Dataset):
    def __init__(self):
        self.batch = torch.zeros(8, 4)
    def __len__(self):
        return 12
    def __getitem__(self, index):
        return self.batch.fill_(index), torch.zeros(1)

class Fresh(Filled):
    def __init__(self):
        pass
    def __getitem__(self, index):
        return torch.full((8, 4), float(index)), torch.zeros(1)

def paced(loader):
    for batch in loader:
        time.sleep(0.002)
        yield batch

loaders = [DataLoader(kind(), batch_size=None) for kind in (Filled, Fresh)]
print(json.dumps([train(paced(loader), epochs=1)["seen"] for loader in loaders]))
"""


def test_a_batch_that_the_data_set_fills_again_gets_no_workers(run_knobs: RunKnobs) -> None:
    """A worker's next batch would overwrite the shared memory that the script still reads."""
    run = run_knobs(REUSED, {"loader_workers": 2})
    order = [index for index in range(12) for _ in range(8)]
    assert run.printed == [order, order]
    assert run.outcomes("loader_workers") == ["skipped", "applied"]


def test_workers_can_be_taken_away(run_knobs: RunKnobs) -> None:
    script = PLAIN.replace(
        "shuffle=True",
        "num_workers=2, persistent_workers=True, prefetch_factor=4, timeout=30, "
        "multiprocessing_context='fork'",
    )
    run = run_knobs(script, {"loader_workers": 0})
    tuned = run.printed
    assert tuned["workers"] == 0
    assert {pid for batch in tuned["processes"] for pid in batch} == {tuned["me"]}
    assert run.outcomes("loader_workers") == ["applied"]


def test_only_loaders_that_feed_the_training_are_touched(run_knobs: RunKnobs) -> None:
    script = """
training = DataLoader(Squares(), batch_size=8)
evaluation = DataLoader(Squares(), batch_size=8)
train(training, epochs=1)
print(json.dumps({"training": training.num_workers, "evaluation": evaluation.num_workers}))
"""
    line = (HEAD + script).splitlines().index("training = DataLoader(Squares(), batch_size=8)") + 1
    tuned = run_knobs(script, {"loader_workers": 1}, (f"train.py:{line}#0",)).printed
    assert tuned == {"training": 1, "evaluation": 0}


UNFIT = """
import socket

class Stream(IterableDataset):
    def __iter__(self):
        return iter(Squares()[i] for i in range(64))

class Mine(DataLoader):
    def __init__(self, dataset):
        super().__init__(dataset, batch_size=8)

if __name__ == "__main__":
    torch.multiprocessing.set_start_method("spawn")
    asking, local = Squares(), Squares()
    asking.answers, _ = socket.socketpair()
    local.transform = lambda x: x
    loaders = [
        DataLoader(Stream(), batch_size=8, multiprocessing_context=None),
        Mine(Squares()),
        DataLoader(local, batch_size=8),
    ]
    # what a machine whose default is fork would do
    torch.multiprocessing.set_start_method("fork", force=True)
    loaders.append(DataLoader(asking, batch_size=8))
    print(json.dumps([{**train(x, epochs=1), "workers": x.num_workers} for x in loaders]))
"""


def test_unfit_loaders_stay_as_they_are_with_the_reason_in_the_record(run_knobs: RunKnobs) -> None:
    run = run_knobs(UNFIT, {"loader_workers": 2, "loader_prefetch": 4})
    tuned = run.printed
    assert [loader["workers"] for loader in tuned] == [0, 0, 0, 0]
    assert all(loader["seen"] == list(range(64)) for loader in tuned)
    assert {outcome for _, outcome, _ in run.knobs} == {"skipped"}
    details = [detail for knob, _, detail in run.knobs if knob == "loader_workers"]
    for detail, reason in zip(
        details,
        (
            "an iterable data set",
            "subclass of DataLoader",
            "cannot be pickled",
            "from the open answers",
        ),
        strict=True,
    ):
        assert reason in detail


def test_workers_started_afresh_need_a_main_guard(run_knobs: RunKnobs) -> None:
    script = """
torch.multiprocessing.set_start_method("spawn")
loader = DataLoader(Squares(), batch_size=8)
print(json.dumps({**train(loader, epochs=1), "workers": loader.num_workers}))
"""
    run = run_knobs(script, {"loader_workers": 1})
    assert run.printed["workers"] == 0
    ((_, outcome, detail),) = run.knobs
    assert outcome == "skipped"
    assert "no __main__ guard" in detail


def test_a_stream_gets_no_worker_which_would_not_see_how_a_pass_ends(run_knobs: RunKnobs) -> None:
    """It would repeat the first epoch for ever."""
    script = """
class Stream(IterableDataset):
    epoch = 0
    def __iter__(self):
        yield from (Squares()[(i + self.epoch) % 64] for i in range(64))
        self.epoch += 1
loader = DataLoader(Stream(), batch_size=8)
print(json.dumps({**train(loader), "workers": loader.num_workers}))
"""
    for asked in (1, 5):
        run = run_knobs(script, {"loader_workers": asked})
        assert run.printed["workers"] == 0
        assert run.printed["seen"] == [*range(64), *range(1, 64), 0]
        ((_, outcome, detail),) = run.knobs
        assert outcome == "skipped"
        assert "an iterable data set" in detail


def test_a_data_set_that_counts_epochs_gets_new_workers_each_epoch(run_knobs: RunKnobs) -> None:
    script = """
class Curriculum(Squares):
    epoch = 0
    def set_epoch(self, epoch):
        self.epoch = epoch
    def __getitem__(self, index):
        return torch.full((4,), float(self.epoch)), os.getpid()
data = Curriculum()
loader = DataLoader(data, batch_size=8)
first = train(loader, epochs=1)["seen"]
data.set_epoch(1)
print(json.dumps({"first": first, "second": train(loader, epochs=1)["seen"]}))
"""
    run = run_knobs(script, {"loader_workers": 1, "loader_persistent": True})
    assert (set(run.printed["first"]), set(run.printed["second"])) == ({0}, {1})
    assert run.outcomes("loader_persistent") == ["applied", "runtime_only"]


def test_pinning_without_a_gpu_is_skipped_without_a_word_of_torch(run_knobs: RunKnobs) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    run = run_knobs(PLAIN, {"loader_pin_memory": True})
    assert run.outcomes("loader_pin_memory") == ["skipped"]


def test_threads_are_set_before_the_script_runs_and_the_script_has_the_last_word(
    run_knobs: RunKnobs,
) -> None:
    script = """
before = torch.get_num_threads()
torch.set_num_threads(1)
print(json.dumps([before, torch.get_num_threads()]))
"""
    assert run_knobs(script, {"cpu_threads": 3}).printed == [3, 1]


def test_settings_apply_in_the_knobs_order_whatever_the_files(run_knobs: RunKnobs) -> None:
    settings = {"loader_persistent": True, "loader_prefetch": 4, "loader_workers": 2}
    script = (
        "import torch\nfrom torch.utils.data import DataLoader, TensorDataset\n"
        "loader = DataLoader(TensorDataset(torch.ones(64, 1)), batch_size=4)\n"
        "print([loader.num_workers, loader.prefetch_factor, int(loader.persistent_workers)])\n"
    )
    assert run_knobs(script, settings).printed == [2, 4, 1]


ANEW = """
def loader_of(dataset, batch=16, sampler=None):
    return DataLoader(dataset, batch_size=batch, sampler=sampler)
squares, others, told = Squares(), Squares(), []
for _ in range(3):
    loader = loader_of(squares)
    train(loader, epochs=1)
    rest = [loader_of(others), loader_of(squares, 32), loader_of(squares, sampler=range(64))]
    told.append([each.num_workers for each in (loader, *rest)])
print(json.dumps({"told": told}))
"""


def test_a_loader_built_anew_like_the_trainings_has_its_settings(run_knobs: RunKnobs) -> None:
    """The trials may have been over before the second epoch: they knew the first loader alone."""
    lines = (HEAD + ANEW).splitlines()
    line = next(n for n, text in enumerate(lines, 1) if text.startswith("    return DataLoader("))
    run = run_knobs(ANEW, {"loader_workers": 2}, (f"train.py:{line}#0",))
    assert run.printed["told"] == [[2, 0, 0, 0]] * 3


DRAWN = """
def loader_of(dataset, sampler=None):
    return DataLoader(dataset, batch_size=16, sampler=sampler)
squares = Squares()
first = loader_of(squares, sampler=range(64))
train(first, epochs=1)
print(json.dumps({"told": [first.num_workers, loader_of(squares).num_workers]}))
"""


def test_a_training_loader_with_a_sampler_of_its_own_says_nothing_of_others(
    run_knobs: RunKnobs,
) -> None:
    lines = (HEAD + DRAWN).splitlines()
    line = next(n for n, text in enumerate(lines, 1) if text.startswith("    return DataLoader("))
    run = run_knobs(DRAWN, {"loader_workers": 2}, (f"train.py:{line}#0",))
    assert run.printed["told"] == [2, 0]
