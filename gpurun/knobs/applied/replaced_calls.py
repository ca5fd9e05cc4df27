"""Stand in for methods of torch, moves of tensors among them, and for the forward of some modules.

Copies, pickles and state dicts of these modules do not see it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.nn import Module

from gpurun.identity_map import IdentityMap
from gpurun.knobs.callers import is_ours
from gpurun.records.frames import drop_frame

Args = tuple[Any, ...]
"""The positional arguments of a call."""
Kwargs = dict[str, Any]
"""Its keyword arguments."""
Forward = Callable[..., Any]
"""A module's forward, as its class holds it: the module is the first argument."""


T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")

Ask = Callable[[Tensor, Args, Kwargs], object]
"""(target, args, kwargs of a call) → what it returns instead; None: the original is called."""


def intercepted(
    original: Callable[Concatenate[T, P], R],
    ask: Callable[[T, Args, Kwargs], object],
) -> Callable[Concatenate[T, P], Any]:
    """The replacement of a method: it passes each call to `ask`, which may answer it."""

    def method(target: T, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        answer = ask(target, args, kwargs)
        if answer is not None:
            return answer
        try:
            return original(target, *args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise

    method.__name__ = original.__name__
    method.__doc__ = original.__doc__
    return method


E = TypeVar("E")
Run = Callable[[Any, E, Forward, Args, Kwargs], object]
"""(module, entry, the class's own forward, args, kwargs of a call) → what the call returns."""


class ReplacedForwards(Generic[E]):
    """Calls `run(module, entry, original, args, kwargs)` for the forward of each chosen module.

    The replacement patches the class and looks for the very instance. So a copy (an EMA model, a
    spawned child's) runs its own forward, and a pickle holds nothing of it. torch.compile traces
    the original. An error that `run` raises reads as if the original had been called.
    """

    def __init__(self, run: Run[E]) -> None:
        self._run = run
        self._entries: IdentityMap[E | None] = IdentityMap()
        self._classes: set[type[Module]] = set()

    def choose(self, module: Module, entry: E) -> None:
        """Replace this module's forward from now on."""
        cls = type(module)
        if cls not in self._classes:
            self._classes.add(cls)
            cls.forward = self._replacement(cls, cls.forward)
        self._entries[module] = entry

    def leave(self, module: Module) -> None:
        """Let the module run its own forward again."""
        self._entries[module] = None

    def _replacement(self, cls: type[Module], original: Forward) -> Forward:
        find, run, is_compiling = self._entries.get, self._run, torch.compiler.is_compiling
        drop_frames = _drop_frames

        def forward(module: Module, *args: Any, **kwargs: Any) -> object:
            try:
                if is_compiling() or type(module) is not cls:
                    return original(module, *args, **kwargs)
                entry = find(module)
                if entry is None:
                    return original(module, *args, **kwargs)
                return run(module, entry, original, args, kwargs)
            except BaseException as error:
                drop_frames(error, original)
                raise

        return functools.update_wrapper(_among(original, forward), original)


def _among(original: Forward, forward: Forward) -> Forward:
    """`forward`, which reads no globals, among those of the original.

    There TorchScript looks up what the source of the original names.
    """
    if not (isinstance(original, FunctionType) and isinstance(forward, FunctionType)):
        return forward
    return FunctionType(
        forward.__code__, original.__globals__, forward.__name__, None, forward.__closure__
    )


def cannot_choose(module: Module) -> str | None:
    """Why a module's forward cannot be replaced, None if it can."""
    if isinstance(module, torch.jit.ScriptModule):
        return "it is compiled by TorchScript"
    if "forward" in vars(module):
        return "its forward was replaced by the script"
    return None


def _drop_frames(error: BaseException, original: Forward) -> None:
    """Take the frames of ours and of torch before the original off the traceback."""
    trace, code = error.__traceback__, getattr(original, "__code__", None)
    while trace is not None and trace.tb_next is not None:
        frame = trace.tb_next.tb_frame
        if frame.f_code is code:
            error.__traceback__ = trace
            break
        if not (is_ours(frame) or str(frame.f_globals.get("__name__")).startswith("torch.")):
            break  # the script's own: an original further inside is another call
        trace = trace.tb_next
    drop_frame(error)


Moved = tuple[torch.device, torch.dtype | None, bool, torch.memory_format | None]
"""Device, type (None: its own), whether without blocking, memory format (None: its own)."""


def move_asked(args: Args, kwargs: Kwargs) -> Moved | None:
    """The request of a call of `Tensor.to`; None if it is not understood."""
    kwargs = {name: value for name, value in kwargs.items() if name != "copy"}
    try:
        device, dtype, non_blocking, memory_format = torch._C._nn._parse_to(*args, **kwargs)
    except (TypeError, RuntimeError):
        return None
    return None if device is None else (device, dtype, bool(non_blocking), memory_format)


def cuda_asked(args: Args, kwargs: Kwargs) -> Moved | None:
    """The same for `Tensor.cuda`."""
    names = dict(zip(("device", "non_blocking", "memory_format"), args, strict=False)) | kwargs
    device = names.get("device")
    where = ("cuda", device) if isinstance(device, int) else (device or "cuda",)
    non_blocking = bool(names.get("non_blocking", False))
    return torch.device(*where), None, non_blocking, names.get("memory_format")


def numbered(device: torch.device) -> torch.device:
    """The device with its index: `cuda` is the current one."""
    if device.type != "cuda" or device.index is not None:
        return device
    return torch.device("cuda", torch.cuda.current_device())


Asked = Callable[[Args, Kwargs], Moved | None]
"""The request of a call that moves tensors; None if it is not understood."""


def answer_moves(answering: Callable[[Asked], Ask]) -> None:
    """Replace the moves of tensors; `answering` makes the answer of what understands a call."""
    for name, asked in (("to", move_asked), ("cuda", cuda_asked)):
        setattr(Tensor, name, intercepted(getattr(Tensor, name), answering(asked)))
