"""Run a forward again exactly as it ran: its random numbers and its buffers."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils.checkpoint import checkpoint

from gpurun.knobs.applied.replaced_calls import Args, Forward, Kwargs
from gpurun.knobs.applied.root_calls import leaves

TOLERANCE = 0.02
"""Relative difference of two runs with the same random numbers: rounding, not another choice."""

Buffer = tuple[Module, str]
"""A buffer: the module that holds it, and its name there."""


class Moment:
    """The state that torch's checkpoint does not keep, as it is when this is made; a context.

    Inside, python's and numpy's random numbers and the buffers at `places` are as they were at that
    moment. Afterwards they are as before, whatever ran inside: statistics of BatchNorm are not
    updated twice. The originals of the buffers are never written to. It may be entered several
    times.
    """

    def __init__(self, places: Iterable[Buffer]) -> None:
        self._random = _random_states()
        self._then = [(owner, name, _buffer(owner, name).clone()) for owner, name in places]
        self._now: list[tuple[Module, str, Tensor]] = []
        self._random_now = self._random

    def __enter__(self) -> None:
        self._random_now = _random_states()
        _set_random_states(self._random)
        self._now = [(owner, name, _buffer(owner, name)) for owner, name, _ in self._then]
        for owner, name, value in self._then:
            owner._buffers[name] = value.clone()

    def __exit__(self, *_: object) -> None:
        _set_random_states(self._random_now)
        for owner, name, value in self._now:
            owner._buffers[name] = value
        self._now = []

    def changed(self) -> list[Buffer]:
        """Inside: the buffers that are no longer as they were when it was entered."""
        return [
            (owner, name)
            for owner, name, value in self._then
            if not _same(value, owner._buffers.get(name))
        ]


def checkpointed(
    original: Forward, module: Module, args: Args, kwargs: Kwargs, moment: Moment
) -> object:
    """`original(module, *args, **kwargs)`, computed again at `moment` in the backward pass."""
    count, names = len(args), list(kwargs)

    def run(*values: object) -> object:
        return original(module, *values[:count], **dict(zip(names, values[count:], strict=True)))

    # all by position: torch looks for devices, whose random numbers it keeps, only there
    return checkpoint(
        run,
        *args,
        *kwargs.values(),
        use_reentrant=False,
        context_fn=lambda: (nullcontext(), moment),
    )


def rehearse(
    module: Module, original: Forward, args: Args, kwargs: Kwargs
) -> tuple[object, list[Buffer]]:
    """The result of `original(module, *args, **kwargs)` without gradients, and the buffers of
    `module` that it changed.

    Random numbers and buffers are afterwards as before. Other effects stay: a list that a forward
    appends to is longer.
    """
    moment = Moment(
        (owner, name)
        for owner in module.modules()
        for name, value in owner._buffers.items()
        if value is not None
    )
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    devices = [] if device.type == "cpu" else [device]
    kind = {} if device.type == "cpu" else {"device_type": device.type}
    with torch.random.fork_rng(devices, **kind), moment, torch.no_grad():
        return original(module, *args, **kwargs), moment.changed()


def agree(one: object, other: object) -> bool:
    """True if two outputs hold tensors of the same shapes and, but for rounding, values.

    Rounding: a difference of `TOLERANCE`, relative, in the L2 norm of each tensor.
    """
    ones, others = leaves(one), leaves(other)
    return len(ones) == len(others) and all(map(_close, ones, others))


def _close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not (one.is_floating_point() or one.is_complex()):
        return _same(one, other)
    difference = (one.detach() - other.detach()).abs().double().norm()
    return bool(difference <= TOLERANCE * one.detach().abs().double().norm())


def _same(one: Tensor, other: Tensor | None) -> bool:
    return other is not None and bool(torch.equal(one, other))


def _buffer(owner: Module, name: str) -> Tensor:
    buffer = owner._buffers[name]
    assert buffer is not None, "only buffers that are there are kept"
    return buffer


def _random_states() -> tuple[Any, Any]:
    numpy = sys.modules.get("numpy.random")
    return random.getstate(), None if numpy is None else numpy.get_state()


def _set_random_states(states: tuple[Any, Any]) -> None:
    random.setstate(states[0])
    if states[1] is not None:
        sys.modules["numpy.random"].set_state(states[1])
