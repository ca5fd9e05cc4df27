"""Settings as a patch: each is written whole, or left out with nothing of it in the patch."""

from __future__ import annotations

import ast
import dataclasses
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gpurun.eject.checked_patch import patched_folder
from gpurun.eject.patch import Ejected, PatchWriter
from gpurun.knobs.api import Effect, Hooks, Knob, Skip
from gpurun.knobs.loading.applied import changed_datasets
from gpurun.knobs.loading.loader_persistent import LoaderPersistent
from gpurun.knobs.loading.loader_workers import LoaderWorkers
from gpurun.knobs.source_forms import (
    AfterImport,
    AfterOptimizer,
    AroundCalls,
    LoaderArgument,
    NoSynchronisation,
    OptimizerArgument,
    SourceForm,
)
from gpurun.records.events import RUNTIME_ONLY, KnobEvent
from gpurun.records.facts import Facts
from gpurun.records.messages.training_events import SiteKind, SourceSiteEvent

SOURCE = """\
import torch
from torch.utils.data import DataLoader

batches = DataLoader(data)
checked = DataLoader(data)
optimizer = torch.optim.AdamW(model.parameters())
slow = torch.optim.LBFGS(model.parameters())
for batch in batches:
    model(batch)
    torch.cuda.synchronize()
elapsed = torch.cuda.synchronize() or clock()
"""
KEYS = {4: "train.py:4#0", 5: "train.py:5#0", 6: "AdamW", 7: "LBFGS"}


class Forms(Knob):
    """A setting whose value is its forms."""

    name: ClassVar[str] = "forms"
    effect: ClassVar[Effect] = Effect.PIPELINE

    def candidates(self, facts: Facts) -> Sequence[Any] | Skip:
        return Skip("set by hand")

    def apply(self, value: Any, hooks: Hooks) -> None:
        hooks.applied()

    def source_forms(self, value: Any) -> Sequence[SourceForm]:
        return list(value)


def site(kind: SiteKind, file: Path, line: int) -> SourceSiteEvent:
    """The first call of a line."""
    calls = [n for n in ast.walk(ast.parse(SOURCE)) if isinstance(n, ast.Call) and n.lineno == line]
    call = min(calls, key=lambda node: (node.col_offset, -(node.end_col_offset or 0)))
    place = (call.lineno, call.end_lineno, call.col_offset, call.end_col_offset)
    name = "model" if kind is SiteKind.MODEL else KEYS.get(line, "")
    return SourceSiteEvent(kind, str(file), *place, name=name)


def ejected(folder: Path, *settings: Sequence[SourceForm], applied: str = "done") -> Ejected:
    """The settings of one knob after another, all of which took effect as `applied` says."""
    script = folder / "train.py"
    script.write_text(SOURCE)
    sites = [
        *(site(SiteKind.LOADER, script, line) for line in (4, 5)),
        *(site(SiteKind.OPTIMIZER, script, line) for line in (6, 7)),
        site(SiteKind.MODEL, script, 6),
        site(SiteKind.ROOT_CALL, script, 9),
        *(site(SiteKind.SYNCHRONIZE, script, line) for line in (10, 11)),
    ]
    writer = PatchWriter(script, folder, sites, ())
    for forms in settings:
        writer.write(Forms(), forms, [KnobEvent("forms", "applied", applied)])
    return writer.finish()


def patched(done: Ejected) -> str:
    (both,) = done.files.values()
    return both[1].decode()


def test_a_setting_that_is_left_out_leaves_none_of_its_forms(tmp_path: Path) -> None:
    first = (
        AfterImport("torch.fast()"),
        AfterOptimizer("{model}.compile()"),
        OptimizerArgument("fused", "True"),
        AroundCalls("half", "def half(f, *args):\n    return f(*args)\n", ()),
    )
    done = ejected(tmp_path, (*first, LoaderArgument("num_workers", "2")), applied="AdamW: fused")
    assert not done.files
    assert not done.knobs
    (left,) = done.left_out
    assert left == (
        "forms",
        "gpurun found no call in your own source that builds the loader: AdamW",
    )


def test_a_setting_after_one_that_is_left_out_is_written(tmp_path: Path) -> None:
    failing = (AfterImport("torch.fast()"), NoSynchronisation())
    done = ejected(tmp_path, (AfterImport("torch.a()"),), failing, (AfterImport("torch.b()"),))
    assert done.knobs == ("forms", "forms")
    assert len(done.left_out) == 1
    assert "torch.a()\ntorch.b()\n" in patched(done)
    assert "torch.fast()" not in patched(done)


def test_no_synchronisation_goes_if_one_has_to_stay(tmp_path: Path) -> None:
    done = ejected(tmp_path, (NoSynchronisation(),))
    assert not done.files
    assert done.left_out == (("forms", "synchronize is part of a larger statement: train.py:11"),)


def test_a_setting_that_would_make_the_file_no_source_is_left_out(tmp_path: Path) -> None:
    done = ejected(tmp_path, (AfterImport("torch.fast("),), (AfterOptimizer("{model}.told = 1"),))
    assert done.knobs == ("forms",)
    assert done.left_out[0][1].startswith("train.py would be no source: ")
    assert "model.told = 1\n" in patched(done)


def test_an_argument_is_given_where_the_setting_took_effect(tmp_path: Path) -> None:
    done = ejected(tmp_path, (OptimizerArgument("fused", "True"),), applied="AdamW: fused")
    assert "AdamW(model.parameters(), fused=True)" in patched(done)
    assert "LBFGS(model.parameters())" in patched(done)
    done = ejected(tmp_path, (LoaderArgument("num_workers", "2"),), applied="train.py:4#3: workers")
    assert "batches = DataLoader(data, num_workers=2)" in patched(done)
    assert "checked = DataLoader(data)" in patched(done)


def test_two_settings_of_one_call_are_both_written(tmp_path: Path) -> None:
    workers, pinned = LoaderArgument("num_workers", "2"), LoaderArgument("pin_memory", "True")
    done = ejected(tmp_path, (workers,), (pinned,), applied="train.py:4#0: done")
    assert "batches = DataLoader(data, num_workers=2, pin_memory=True)" in patched(done)


MADE = """\
import torch

def make(model):
    return torch.optim.Adam(model.parameters())

net, other = Net(), Net()
optimizers = [make(net)]
optimizers += [make(other)]
"""


@pytest.mark.parametrize("known", [2, 1, 0])
def test_a_statement_about_the_model_is_written_for_all_models_or_none(
    tmp_path: Path, known: int
) -> None:
    script = tmp_path / "train.py"
    script.write_text(MADE)

    def place(line: int, name: str, root: int) -> SourceSiteEvent:
        event = SourceSiteEvent(SiteKind.MODEL, str(script), line, None, None, None, name)
        return dataclasses.replace(event, root=root)

    sites = [place(4, "model", 0), place(4, "model", 1)]  # after a return nothing is run
    sites += [place(7, "net", 0), place(8, "other", 1)][:known]
    writer = PatchWriter(script, tmp_path, sites, ())
    form = AfterOptimizer("{model}.compile()")
    writer.write(Forms(), [form], [KnobEvent("forms", "applied", "done")])
    done = writer.finish()
    if known < 2:
        reason = "gpurun found no line with a name for the model and its optimizer"
        assert (done.left_out, done.files) == ((("forms", reason),), {})
    else:
        ends = "[make(net)]\nnet.compile()\noptimizers += [make(other)]\nother.compile()\n"
        assert patched(done).endswith(ends)


@pytest.mark.parametrize(("outcome", "late"), [("workers 2, none before", 1), ("workers 2", 0)])
def test_added_workers_shuffle_when_a_loader_without_them_does(
    tmp_path: Path, outcome: str, late: int
) -> None:
    forms = LoaderWorkers().source_forms(2)
    done = ejected(tmp_path, tuple(forms), applied=f"train.py:4#0: {outcome}")
    assert "DataLoader(data, num_workers=2)" in patched(done)
    assert patched(done).count("batches = sample_late(DataLoader(") == late
    assert patched(done).count("def sample_late(loader):") == late


def test_persistent_workers_keep_the_draws_of_new_ones(tmp_path: Path) -> None:
    forms = LoaderPersistent().source_forms(True)
    done = ejected(tmp_path, tuple(forms), applied="train.py:4#0: kept")
    assert "batches = keep_draws(DataLoader(data, persistent_workers=True))" in patched(done)
    assert "checked = DataLoader(data)" in patched(done)
    assert patched(done).count("def keep_draws(loader):") == 1


def test_persistent_workers_that_gpurun_had_to_renew_are_left_out(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SOURCE)
    writer = PatchWriter(script, tmp_path, (), ())
    knob = LoaderPersistent()
    events = [KnobEvent(knob.name, "applied", "train.py:4#0: kept")]
    events.append(KnobEvent(knob.name, RUNTIME_ONLY, "the data set changed"))
    writer.write(knob, True, events)
    done = writer.finish()
    assert (done.left_out, done.files) == (((knob.name, "the data set changed"),), {})


@pytest.mark.parametrize(("change", "leave"), [(0, False), (1, False), (0, True)])
def test_new_workers_between_epochs_are_told(change: int, leave: bool) -> None:
    data, working = Namespace(level=0), Namespace(_index_queues=[])
    loader: Any = Namespace(dataset=data, collate_fn=None, _iterator=None)
    assert not changed_datasets._renew_workers(loader), "the first epoch"
    loader._iterator, data.level = working, change
    changed_datasets._ended[working] = not leave
    assert changed_datasets._renew_workers(loader) == bool(change or leave)
    assert (loader._iterator is None) == bool(change or leave)


def test_the_patched_folder_holds_the_change_and_links_to_the_rest(tmp_path: Path) -> None:
    user, run = tmp_path / "user", tmp_path / "user" / "runs"
    (user / "package").mkdir(parents=True)
    run.mkdir()
    for name in ("train.py", "package/model.py", "package/data.py"):
        (user / name).write_text("x = 1\n")
    with patched_folder(user, {user / "package" / "model.py": b"x = 2\n"}, run) as made:
        assert (made / "package" / "model.py").read_text() == "x = 2\n"
        assert (made / "package" / "data.py").is_symlink()
        assert (made / "train.py").is_symlink()
        assert not (made / "runs").exists()
    assert not list(run.iterdir())
    assert (user / "package" / "model.py").read_text() == "x = 1\n"
