"""Batches that are copied ahead: handed out once, only if they are as they were, never too many.

There is no second device here: a carrier that clones stands in for the side stream, everything
else is the real thing. The stream itself is tested on a GPU.
"""

from __future__ import annotations

import gc
import os
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpurun.knobs.applied.copies_ahead import DEPTH, BatchesAhead, CopiesAhead
from gpurun.knobs.applied.replaced_calls import cuda_asked, move_asked

CPU = torch.device("cpu")


class Clones:
    """Carries tensors by cloning them, and remembers which."""

    def __init__(self) -> None:
        self.begun: list[float] = []
        self.finished: list[bool] = []

    def begin(self, tensor: Any, device: Any) -> Any:
        self.begun.append(float(tensor.reshape(-1)[0]))
        return tensor.clone()

    def finish(self, begun: Any, device: Any, blocking: bool) -> Any:
        self.finished.append(blocking)
        return begun


def batch(number: int) -> list[torch.Tensor]:
    """Inputs filled with their number, and targets that the script keeps on the host."""
    return [torch.full((4, 3), float(number)), torch.zeros(4)]


@pytest.fixture
def carrier() -> Clones:
    return Clones()


@pytest.fixture
def copies(carrier: Clones) -> CopiesAhead:
    """Copies that know from a first batch that the script moves the inputs alone."""
    made = CopiesAhead(carrier)
    first = batch(0)
    made.arrived(first)
    assert made.take(first[0], CPU, blocking=True) is None, "nothing was known yet"
    return made


def test_what_the_script_moves_is_learned_and_only_that_is_copied(
    copies: CopiesAhead, carrier: Clones
) -> None:
    second = batch(1)
    copies.arrived(second)
    assert carrier.begun == [1.0]
    copy = copies.take(second[0], CPU, blocking=True)
    assert copy is not None
    assert copy.equal(second[0])
    assert copy is not second[0]
    assert copies.take(second[1], CPU, blocking=True) is None


def test_a_second_move_of_the_same_tensor_is_the_scripts_own(copies: CopiesAhead) -> None:
    second = batch(1)
    copies.arrived(second)
    assert copies.take(second[0], CPU, blocking=True) is not None
    assert copies.take(second[0], CPU, blocking=True) is None


def test_a_tensor_that_was_changed_is_not_handed_out(copies: CopiesAhead) -> None:
    second = batch(1)
    copies.arrived(second)
    second[0].mul_(2)
    assert copies.take(second[0], CPU, blocking=True) is None


def test_a_tensor_that_others_may_write_to_is_not_handed_out(copies: CopiesAhead) -> None:
    second = batch(1)
    copies.arrived(second)
    copies.forget(second[0])
    assert copies.take(second[0], CPU, blocking=True) is None


def test_another_device_is_the_scripts_own_and_is_learned(copies: CopiesAhead) -> None:
    other = torch.device("meta")
    second, third = batch(1), batch(2)
    copies.arrived(second)
    assert copies.take(second[0], other, blocking=True) is None
    copies.arrived(third)
    assert copies.take(third[0], other, blocking=True) is not None


def test_no_more_than_two_batches_lie_ahead(copies: CopiesAhead, carrier: Clones) -> None:
    waiting = [batch(n) for n in range(1, 6)]
    for each in waiting:
        copies.arrived(each)
    assert carrier.begun == [1.0, 2.0]
    assert len(carrier.begun) == DEPTH
    copies.take(waiting[0][0], CPU, blocking=True)
    assert carrier.begun == [1.0, 2.0, 3.0], "each that is taken makes room for the next"


def test_batches_that_the_script_drops_make_room(copies: CopiesAhead, carrier: Clones) -> None:
    waiting = [batch(n) for n in range(1, 6)]
    for each in waiting:
        copies.arrived(each)
    del waiting[:2], each
    gc.collect()
    assert carrier.begun == [1.0, 2.0, 3.0, 4.0]
    waiting.clear()
    gc.collect()
    assert copies.parts == {}, "nothing is kept of what is gone"


def test_a_part_that_is_never_moved_again_does_not_block(
    copies: CopiesAhead, carrier: Clones
) -> None:
    """The script stops moving its inputs: dropped batches must not fill the room for ever."""
    for number in range(1, 20):
        each = batch(number)
        copies.arrived(each)
        del each
    assert carrier.begun == [float(n) for n in range(1, 20)]


def test_blocking_moves_wait_for_their_copy(copies: CopiesAhead, carrier: Clones) -> None:
    for number, blocking in ((1, True), (2, False)):
        each = batch(number)
        copies.arrived(each)
        copies.take(each[0], CPU, blocking=blocking)
    assert carrier.finished == [True, False]


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ((CPU,), {}, (CPU, None, False, None)),
        (("cpu",), {"non_blocking": True}, (CPU, None, True, None)),
        ((CPU, torch.float16), {}, (CPU, torch.float16, False, None)),
        ((), {"device": "cpu", "copy": True}, (CPU, None, False, None)),
        ((torch.zeros(1),), {}, (CPU, torch.float32, False, None)),
        ((torch.float16,), {}, None),
        (("no such device",), {}, None),
        ((), {"memory_format": torch.channels_last}, None),
    ],
)
def test_what_a_move_asks_for(
    args: tuple[Any, ...], kwargs: dict[str, Any], expected: tuple[Any, ...] | None
) -> None:
    assert move_asked(args, kwargs) == expected


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ((), {}, ("cuda", False)),
        ((1,), {}, ("cuda:1", False)),
        (("cuda:2", True), {}, ("cuda:2", True)),
        ((), {"device": torch.device("cuda", 3), "non_blocking": True}, ("cuda:3", True)),
    ],
)
def test_what_a_call_of_cuda_asks_for(
    args: tuple[Any, ...], kwargs: dict[str, Any], expected: tuple[str, bool]
) -> None:
    asked = cuda_asked(args, kwargs)
    assert asked is not None
    assert (str(asked[0]), asked[2]) == expected
    assert asked[3] is None


class Told:
    """What a knob says of itself."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []

    def applied(self, detail: str = "") -> None:
        self.said.append(("applied", detail))

    def revoked(self, reason: str) -> None:
        self.said.append(("revoked", reason))


@pytest.fixture
def pinning(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A prefetch to the "device" cpu, connected with torch; `pin` is what loaders call."""
    for name in ("to", "cuda", "numpy", "__dlpack__"):
        monkeypatch.setattr(torch.Tensor, name, getattr(torch.Tensor, name))  # to be put back

    def pin_memory(data: Any) -> Any:
        return data.clone() if isinstance(data, torch.Tensor) else [pin_memory(x) for x in data]

    module = SimpleNamespace(pin_memory=pin_memory)
    told: Any = Told()
    carrier = Clones()
    BatchesAhead(CopiesAhead(carrier), told, "cpu").install(module)
    return SimpleNamespace(pin=module.pin_memory, told=told.said, carrier=carrier)


def test_a_scripts_loop_gets_equal_copies_from_the_second_batch_on(pinning: Any) -> None:
    for number in range(4):
        x, y = pinning.pin(batch(number))
        moved, half = x.to("cpu"), y.to(CPU, torch.float16)
        assert moved.equal(torch.full((4, 3), float(number)))
        assert (moved is x) == (number == 0)
        assert half.dtype is torch.float16
    assert pinning.told == [("applied", "copied ahead to cpu")] * 6


def test_what_is_written_through_numpy_is_copied_anew(pinning: Any) -> None:
    for number in range(3):
        x, _ = pinning.pin(batch(number))
        x.numpy()[:] = 7
        assert x.to("cpu").equal(torch.full((4, 3), 7.0))
    assert pinning.told == []


def test_a_change_behind_torchs_back_ends_it_and_is_told(pinning: Any) -> None:
    for number in range(3):
        x, _ = pinning.pin(batch(number))
        x.data.add_(5)
        assert x.to("cpu").equal(torch.full((4, 3), number + 5.0))
    assert pinning.told == [("revoked", "a batch was changed without torch's knowledge")]


def test_a_buffer_that_the_script_pins_itself_is_left_alone(pinning: Any) -> None:
    """Its memory may hold the next batch while a copy of this one is under way."""
    own = SimpleNamespace(pin_memory=lambda data: data)
    BatchesAhead(CopiesAhead(pinning.carrier), pinning.told, "cpu").install(own)
    for number in range(3):
        x, _ = own.pin_memory(batch(number))
        x.to("cpu")
    assert pinning.carrier.begun == []


def test_a_carrier_that_fails_ends_it_and_the_script_goes_on(pinning: Any) -> None:
    pinning.carrier.begin = None
    for number in range(3):
        x, _ = pinning.pin(batch(number))
        assert x.to("cpu").equal(torch.full((4, 3), float(number)))
    ((outcome, why),) = pinning.told
    assert outcome == "revoked"
    assert why.startswith("TypeError")


def test_batches_of_an_unknown_kind_do_not_hold_up_the_others(
    copies: CopiesAhead, carrier: Clones
) -> None:
    kept = [torch.zeros(2, 9)]
    copies.arrived(kept)
    copies.arrived(second := batch(1))
    assert carrier.begun == [1.0]
    assert copies.take(second[0], CPU, blocking=True) is not None


def test_a_forked_worker_neither_waits_nor_touches_a_copy(copies: CopiesAhead) -> None:
    """The lock may be held by a thread of the parent, which the child does not have."""
    second = batch(1)
    copies.arrived(second)
    with copies._lock:
        child = os.fork()
        if child == 0:
            threading.Timer(300, os._exit, [1]).start()
            taken = threading.Thread(target=lambda: copies.take(second[0], CPU, blocking=True))
            taken.start()
            taken.join()
            second.clear()
            kept = [part.begun is not None for part in copies.parts.values() if part.slot == 0]
            os._exit(0 if kept == [True] else 2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
