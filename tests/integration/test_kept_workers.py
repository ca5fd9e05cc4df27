"""Workers that gpurun keeps between epochs, whose copy of the data set a cache has changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.knob_runs import KnobRun, run_under

HEAD = """
import functools, json, os, sys
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, default_collate

FILE = "values.npy"

def write(value):
    np.save(FILE + ".new.npy", np.full(8, float(value)))
    os.replace(FILE + ".new.npy", FILE)

class Values(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.tensor(float(np.load(FILE)[index])), os.getpid()
"""
TRAIN = """
def main():
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    data = DATA
    loader = DataLoader(data, batch_size=2, COLLATE)
    seen, processes = [], []
    for epoch in range(3):
        write(epoch)
        CLEAR
        values, pids = set(), set()
        for x, pid in loader:
            loss = model(x.float()[:, None]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            values |= set(x.tolist())
            pids |= set(pid.tolist())
        seen.append(sorted(values))
        processes.append(sorted(pids))
    print(json.dumps({"seen": seen, "processes": processes}))

if __name__ == "__main__":
    main()
"""
FORMS = {
    "attribute": (
        """
class Cached(Values):
    def __init__(self):
        self.cache = {}
    def __getitem__(self, index):
        if index not in self.cache:
            self.cache[index] = super().__getitem__(index)
        return self.cache[index]
""",
        "data.cache.clear()",
    ),
    "list": (
        """
class Cached(Values):
    def __init__(self):
        self.cache = [None] * 8
    def __getitem__(self, index):
        if self.cache[index] is None:
            self.cache[index] = super().__getitem__(index)
        return self.cache[index]
""",
        "data.cache = [None] * 8",
    ),
    "global": (
        """
CACHE = {}
class Cached(Values):
    def __getitem__(self, index):
        if index not in CACHE:
            CACHE[index] = super().__getitem__(index)
        return CACHE[index]
""",
        "CACHE.clear()",
    ),
    "cached function": (
        """
@functools.lru_cache(maxsize=None)
def read():
    return np.load(FILE)
class Cached(Values):
    def __getitem__(self, index):
        return torch.tensor(float(read()[index])), os.getpid()
""",
        "read.cache_clear()",
    ),
    "function's global": (
        """
MAPS = {}
def opened():
    if FILE not in MAPS:
        MAPS[FILE] = np.load(FILE, mmap_mode="r")
    return MAPS[FILE]
class Cached(Values):
    def __getitem__(self, index):
        return torch.tensor(float(opened()[index])), os.getpid()
""",
        "MAPS.clear()",
    ),
    "class attribute": (
        """
class Cached(Values):
    table = None
    def __getitem__(self, index):
        if Cached.table is None:
            Cached.table = np.load(FILE)
        return torch.tensor(float(self.table[index])), os.getpid()
""",
        "Cached.table = None",
    ),
    "closure of a transform": (
        """
KEPT = {}
def reading(kept):
    def read(index):
        if FILE not in kept:
            kept[FILE] = np.load(FILE)
        return float(kept[FILE][index])
    return read
class Cached(Values):
    def __init__(self):
        self.transform = reading(KEPT)
    def __getitem__(self, index):
        return torch.tensor(self.transform(index)), os.getpid()
""",
        "KEPT.clear()",
    ),
    "module": (
        """
import tables
class Cached(Values):
    def __getitem__(self, index):
        return torch.tensor(float(tables.opened(FILE)[index])), os.getpid()
""",
        "tables.MAPS.clear()",
    ),
}
ALIKE = ("list", "global", "class attribute", "closure of a transform")
"""Forms that are found as others are."""
COLLATING = """
KEPT = {}
def adding(kept):
    def collate(samples):
        if FILE not in kept:
            kept[FILE] = float(np.load(FILE)[0])
        x, pid = default_collate(samples)
        return 0 * x + kept[FILE], pid
    return collate
"""
HELD = """
import time
np.save("fixed.npy", np.full(8, 5.0))
time.sleep(0.2)  # a file that is as young as the workers may have changed since
class Held(Values):
    file = None
    def __getitem__(self, index):
        if self.file is None:
            self.file = open(NAME, "rb")
        self.file.seek(-64, os.SEEK_END)
        return torch.tensor(np.frombuffer(self.file.read(8))[0]).float(), os.getpid()
"""
TABLES = """
import numpy as np
MAPS = {}
def opened(file):
    if file not in MAPS:
        MAPS[file] = np.load(file, mmap_mode="r")
    return MAPS[file]
"""
PERSISTENT = {"loader_persistent": True}

RunKnobs = Callable[..., KnobRun]


@pytest.fixture
def run_knobs(tmp_path: Path, gpurun: Callable[..., Any]) -> RunKnobs:
    """Run a script that begins with `HEAD`, whose workers are kept."""
    (tmp_path / "tables.py").write_text(TABLES)

    def run(
        body: str,
        data: str = "Cached()",
        clear: str = "pass",
        loader: str = "num_workers=2",
        settings: dict[str, Any] = PERSISTENT,
    ) -> KnobRun:
        train = TRAIN.replace("DATA", data).replace("CLEAR", clear).replace("COLLATE", loader)
        return run_under(gpurun, tmp_path, HEAD + body + train, settings)

    return run


@pytest.mark.parametrize(
    "form",
    [pytest.param(form, marks=pytest.mark.slow if form in ALIKE else ()) for form in FORMS],
)
def test_workers_that_filled_a_cache_are_replaced(run_knobs: RunKnobs, form: str) -> None:
    body, clear = FORMS[form]
    run = run_knobs(body, clear=clear)
    assert run.printed["seen"] == [[0.0], [1.0], [2.0]]
    assert run.outcomes("loader_persistent")[-1] == "runtime_only"
    assert "a worker's copy changed" in run.knobs[-1][2]


def test_workers_whose_collate_function_filled_a_cache_are_replaced(run_knobs: RunKnobs) -> None:
    loader = "num_workers=2, collate_fn=adding(KEPT)"
    run = run_knobs(COLLATING, "Values()", "KEPT.clear()", loader)
    assert run.printed["seen"] == [[0.0], [1.0], [2.0]]


def test_added_workers_that_filled_a_cache_are_replaced(run_knobs: RunKnobs) -> None:
    body, clear = FORMS["attribute"]
    settings = {"loader_workers": 2, **PERSISTENT}
    run = run_knobs(body, clear=clear, loader="num_workers=0", settings=settings)
    assert run.printed["seen"] == [[0.0], [1.0], [2.0]]
    assert all(len(pids) == 2 for pids in run.printed["processes"])


def test_workers_that_filled_a_cache_of_a_module_imported_late_are_replaced(
    run_knobs: RunKnobs,
) -> None:
    body = """
class Cached(Values):
    def __getitem__(self, index):
        import tables
        return torch.tensor(float(tables.opened(FILE)[index])), os.getpid()
"""
    run = run_knobs(body)
    assert run.printed["seen"] == [[0.0], [1.0], [2.0]]


def test_spawned_workers_that_filled_a_cache_are_replaced(run_knobs: RunKnobs) -> None:
    body, clear = FORMS["attribute"]
    run = run_knobs(body, clear=clear, loader="num_workers=1, multiprocessing_context='spawn'")
    assert run.printed["seen"] == [[0.0], [1.0], [2.0]]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_whose_data_set_does_not_change_live_on(run_knobs: RunKnobs, method: str) -> None:
    run = run_knobs("", "Values()", loader=f"num_workers=2, multiprocessing_context='{method}'")
    assert run.printed["seen"] == [[0.0], [1.0], [2.0]], "they read the file anew"
    first, second, third = run.printed["processes"]
    assert first == second == third
    assert run.outcomes("loader_persistent") == ["applied"]


def test_workers_live_on_with_a_file_that_they_opened_until_it_changes(
    run_knobs: RunKnobs, tmp_path: Path
) -> None:
    """The usual form of HDF5, lmdb and archives: opened in the worker, at the first sample."""
    run = run_knobs(HELD.replace("NAME", "'fixed.npy'"), "Held()")
    assert run.printed["seen"] == [[5.0]] * 3
    first, second, third = run.printed["processes"]
    assert first == second == third
    run = run_knobs(HELD.replace("NAME", "FILE"), "Held()")
    assert run.printed["seen"] == [[0.0], [1.0], [2.0]]
