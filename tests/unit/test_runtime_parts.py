"""The parts of the runtime that need no torch, each against what a script may do to it."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from gpurun.identity_map import IdentityMap
from gpurun.records.events import HookEvent, TraitEvent
from gpurun.records.frames import drop_frame
from gpurun.records.messages.traits import COPIES_GRADIENTS as COPIES
from gpurun.runtime.core.knob_outcomes import KnobOutcomes
from gpurun.runtime.core.patching import build_edited, guarded, replace
from gpurun.runtime.core.post_import import PostImportFinder
from gpurun.runtime.core.recorder import Recorder
from gpurun.runtime.observe.knob_hooks import KnobHooks
from gpurun.runtime.observe.script_traits import Traits, batch_size_expression, lacks_main_guard
from tests.run_events import events, processes


class Unhashable:
    def __eq__(self, other: object) -> bool:
        return True


def test_objects_are_known_by_identity_for_as_long_as_they_live() -> None:
    known: IdentityMap[int] = IdentityMap()
    first, second = Unhashable(), Unhashable()
    known[first], known[second] = 1, 2
    assert (known.get(first), known.get(second), len(known)) == (1, 2, 2)
    del second
    assert list(known) == [first]
    assert Unhashable() not in known


@pytest.mark.parametrize("view", [True, False])
@pytest.mark.parametrize("inside", [True, False])
def test_a_wrapper_copies_gradients_if_its_option_is_off_once_it_is_built(
    view: bool, inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrapper(torch.nn.Module):
        def __init__(self, gradient_as_bucket_view: bool = False) -> None:
            super().__init__()
            self.gradient_as_bucket_view = gradient_as_bucket_view

    seen = Traits()
    monkeypatch.setattr(seen, "_site", lambda frame: "train.py:30")
    seen._watch_class(Wrapper, "ddp")
    wrapper = Wrapper(view)  # by its place, as gpurun turns it on inside `__init__`, too
    seen.look_at_wrapper(torch.nn.Sequential(wrapper) if inside else wrapper)
    assert seen.seen == {"ddp": "train.py:30"} | ({} if view else {COPIES: "train.py:30"})


def test_a_model_without_a_wrapper_copies_no_gradients() -> None:
    seen = Traits()
    seen.look_at_wrapper(torch.nn.Linear(1, 1))
    assert seen.seen == {}


def _wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any) -> Any:
        try:
            return function(*args)
        except BaseException as error:
            drop_frame(error)
            raise

    return wrapper


def test_a_wrapper_leaves_no_line_in_a_traceback() -> None:
    def fail() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as caught:
        _wrapped(_wrapped(fail))()
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names[-1] == "fail"
    assert "wrapper" not in names


def test_a_call_back_that_raises_is_called_once_only() -> None:
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        raise RuntimeError

    call = guarded("test", fail)
    assert (call(), call(), calls) == (None, None, [1])


def test_what_cannot_be_replaced_is_left_as_it_is() -> None:
    assert not replace(int, "bit_length", _wrapped)
    assert (5).bit_length() == 3


def test_refused_edits_give_way_to_the_scripts_own_arguments() -> None:
    class Thing:
        def __init__(self, size: int) -> None:
            if size < 0:
                raise ValueError("size")
            self.size = size

    thing = Thing(0)
    heard: list[Exception | None] = []
    build_edited("edit", Thing.__init__, thing, {"size": 3}, {"size": -1}, heard.append)
    assert (thing.size, str(heard.pop())) == (3, "size")
    build_edited("edit", Thing.__init__, thing, {"size": 3}, {"size": 5}, heard.append)
    assert (thing.size, heard.pop()) == (5, None)
    with pytest.raises(ValueError, match="size"):  # the script's own mistake stays its own
        build_edited("edit", Thing.__init__, thing, {"size": -3}, {"size": -1}, heard.append)
    assert heard == []


def test_neither_odd_edits_nor_what_hears_of_them_raise_out_of_a_constructor() -> None:
    class Thing:
        def __init__(self, size: int) -> None:
            self.size = size

    def fail(refusal: Exception | None) -> None:
        raise TypeError

    thing = Thing(0)
    for edited in ({"size": 3}, {"size": 4}, {"shape": 4}, None):
        build_edited("edit", Thing.__init__, thing, {"size": 3}, edited, fail)  # type: ignore[arg-type]
        assert thing.size == (4 if edited == {"size": 4} else 3)


def test_what_a_knob_says_of_itself_may_be_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder()
    recorder.open(str(tmp_path), eager=True)
    monkeypatch.setattr("gpurun.runtime.core.knob_outcomes.RECORDER", recorder)
    monkeypatch.setattr("gpurun.runtime.observe.knob_hooks.OUTCOMES", KnobOutcomes())
    hooks = KnobHooks("odd")
    hooks.applied(["a", "list"])  # type: ignore[arg-type]
    hooks.skipped({})  # type: ignore[arg-type]
    told = [(x["knob"], x["outcome"], x["detail"]) for x in events(tmp_path, "knob")]
    assert told == [("odd", "applied", "['a', 'list']"), ("odd", "skipped", "{}")]


def test_nothing_that_is_recorded_can_raise(tmp_path: Path) -> None:
    class Hostile:
        def __repr__(self) -> str:
            raise RuntimeError("no text")

    recorder = Recorder()
    recorder.open(str(tmp_path), eager=True)
    recorder.event(TraitEvent(trait="odd", detail=Hostile()))  # type: ignore[arg-type]
    recorder.event(HookEvent(hook="after", error="\udcff"))
    assert [x.get("hook") for x in events(tmp_path)] == [None, "trait event", "after"]


def test_a_folder_that_is_gone_ends_the_recording(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.open(str(tmp_path / "gone"), eager=True)
    recorder.event(TraitEvent(trait="any", detail=""))
    assert not recorder.recording


def test_a_link_in_place_of_a_record_is_not_written_through(tmp_path: Path) -> None:
    (run := tmp_path / "run").mkdir()
    (tmp_path / "mine").write_text("mine")
    for name in (f"events-{os.getpid()}.jsonl", f"events-{os.getpid()}.jsonl.error"):
        (run / name).symlink_to(tmp_path / "mine")
    recorder = Recorder()
    recorder.open(str(run), eager=True)
    recorder.event(TraitEvent(trait="any", detail=""))
    assert not recorder.recording
    assert (tmp_path / "mine").read_text() == "mine"


def _finder(folder: Path, name: str, text: str, callback: Callable[[Any], None]) -> None:
    (folder / f"{name}.py").write_text(text)
    sys.path.insert(0, str(folder))
    finder = PostImportFinder()
    try:
        finder.when_imported(name, callback)
        __import__(name)
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop(name, None)
        assert finder not in sys.meta_path or "broken" in name
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)  # type: ignore[arg-type]


def test_a_call_back_follows_the_body_of_the_module(tmp_path: Path) -> None:
    seen: list[int] = []
    _finder(tmp_path, "watched_module", "value = 3", lambda module: seen.append(module.value))
    assert seen == [3]


def test_a_call_back_that_raises_does_not_fail_the_import(tmp_path: Path) -> None:
    _finder(tmp_path, "another_module", "value = 3", lambda module: 1 / 0)


def test_a_broken_module_fails_as_it_does_without_us(tmp_path: Path) -> None:
    with pytest.raises(LookupError) as caught:
        _finder(tmp_path, "broken_module", "raise LookupError", print)
    files = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert not any(file.endswith("runtime/core/post_import.py") for file in files)


def test_threads_in_a_fork_do_not_keep_the_child_from_recording(tmp_path: Path) -> None:
    script = """
import os, sys
from gpurun.records.events import TraitEvent
from gpurun.runtime.core.recorder import Recorder
recorder = Recorder()
recorder.open(sys.argv[1], eager=True)
recorder.later(TraitEvent("parent", ""))
recorder._flushing.acquire()  # another thread was flushing when the process forked
child = os.fork()
if child == 0:
    recorder.later(TraitEvent("child", ""))
    recorder.flush()
    os._exit(0)
os.waitpid(child, 0)
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
    assert len(processes(tmp_path)) == 2
    assert [x["trait"] for x in events(tmp_path, "trait")] == ["child"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("DataLoader(data, batch_size=args.batch, shuffle=True)", "args.batch"),
        ("torch.utils.data.DataLoader(\n    data,\n    2 * size,\n)", "2 * size"),
        ("make(DataLoader(data, shuffle=True))", None),
        ("def broken(", None),
        ("(" * 5000 + ")" * 5000, None),
    ],
)
def test_the_batch_size_is_read_from_the_source(
    tmp_path: Path, text: str, expected: str | None
) -> None:
    script = tmp_path / "script.py"
    script.write_text(text)
    assert batch_size_expression(str(script), 1) == expected


def test_reading_the_source_is_not_heard(tmp_path: Path) -> None:
    script = tmp_path / "escapes.py"
    script.write_text('pattern = "\\d"\nDataLoader(data, batch_size=4)\n')
    main = ModuleType("__main__")
    main.__file__ = str(script)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the parser's warning would be a SyntaxError
        filters = list(warnings.filters)
        assert batch_size_expression(str(script), 2) == "4"
        assert lacks_main_guard(main)
        assert warnings.filters == filters


def test_reading_the_source_does_not_bring_back_warnings_that_were_shown(tmp_path: Path) -> None:
    script = """
import sys, warnings
from gpurun.runtime.observe.script_traits import batch_size_expression
for line in range(3):
    warnings.warn("once")
    batch_size_expression(sys.argv[0], line)
"""
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py"], capture_output=True, text=True, check=True
    )
    assert done.stderr.count("UserWarning: once") == 1


FORKS = """
import os
from types import SimpleNamespace
from gpurun.runtime.observe.step_clock import StepClock

class OfTheDevice:
    def __init__(self, **options): pass
    def record(self): pass
    def query(self): return False
    def __del__(self): os.write(1, b"destroyed in a child")

clock = StepClock()
cuda = SimpleNamespace(is_current_stream_capturing=lambda: False, Event=OfTheDevice)
clock.device.attach(SimpleNamespace(cuda=cuda))
clock.device.mark([])
clock.losses.append(OfTheDevice())
if os.fork() == 0:
    os._exit(len(clock.losses))
_, status = os.wait()
os.write(1, f"exit {os.waitstatus_to_exitcode(status)}".encode())
os._exit(0)
"""


def test_a_forked_child_destroys_nothing_of_its_parents_device() -> None:
    """A loader worker that destroyed an event of CUDA would be aborted by it."""
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, check=True)
    assert done.stdout == b"exit 0"
