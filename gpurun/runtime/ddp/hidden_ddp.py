"""Each root module in a real DistributedDataParallel that the script does not see.

The script's object stays what it is: its class, keys, pickles and copies. Its calls are routed
through the wrapper, which calls it again, this time itself. The first steps are averaged here,
not by the wrapper: they show which parameters get gradients, which a wrapper must know.
"""

from __future__ import annotations

import inspect
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from gpurun.records.events import TraitEvent
from gpurun.records.frames import drop_frames
from gpurun.records.messages.traits import DISTRIBUTED_TRAITS
from gpurun.records.spec import Exchange, Setting
from gpurun.runtime.core.patching import replace, stands_in
from gpurun.runtime.core.recorder import RECORDER, error_text
from gpurun.runtime.core.tensor_values import first_tensor
from gpurun.runtime.ddp.accumulated_passes import AccumulatedPasses
from gpurun.runtime.ddp.exchanged_by_hand import (
    UnwrappedParameters,
    average_gradients,
    take_from_rank_zero,
)
from gpurun.runtime.ddp.rank_info import RankInfo, or_stop_rank, stop_rank
from gpurun.runtime.ddp.rank_rng import RankRNG
from gpurun.runtime.ddp.rank_zero_last import MEETINGS
from gpurun.runtime.ddp.wrapped_root import LOOK_STEPS, WrappedRoot
from gpurun.runtime.observe.root_modules import ROOTS
from gpurun.runtime.observe.script_traits import TRAITS
from gpurun.runtime.observe.step_clock import CLOCK

MUTE_BARRIERS = 3
"""Ranks that exchange nothing still wait for each other at this many first steps, which import and
compile: the later steps are to be measured at the same time."""
MOST_IDLE = 4
"""After this many steps without a call a root is left out, until it is called again."""


class HiddenDDP:
    """Keeps the root modules of one rank the same as those of the other ranks.

    `shared_gpus`: several ranks have one device, which NCCL refuses and gloo does not.
    """

    def __init__(
        self,
        rank_info: RankInfo,
        rng: RankRNG,
        exchange: Exchange,
        *,
        shared_gpus: bool = False,
    ) -> None:
        self.pid: int | None = os.getpid()
        """The rank's process. Its children, even if forked, do not exchange; None in a child."""
        self._shared_gpus = shared_gpus
        self._rank_info = rank_info
        self._rng = rng
        self._exchange = not exchange.left_out
        self._static = Setting("static_graph", True) in exchange.options  # each pass like the first
        self._of: dict[int, WrappedRoot] = {}
        """Modules, by identity."""
        self._at_work: list[WrappedRoot] = []
        """The roots that were called recently, in the order in which all ranks called them."""
        self._unwrapped = UnwrappedParameters()
        self.called_with: int | None = None
        """Rows of the tensor that a root was last called with, None where it was given none."""
        self.fed = False
        """True if a loader hands out shares."""
        self.on_call: list[Callable[[], None]] = []
        """Called when a root is called."""
        self._ours = False
        """True if the process group is ours."""
        self._frozen: list[Tensor] = []
        self.passes = AccumulatedPasses()

    def install(self) -> None:
        """Wrap new roots and route their calls."""
        self._grad_enabled = torch.is_grad_enabled
        self._pass = getattr(torch._C, "_current_graph_task_id", lambda: -1)
        self._of_torch = inspect.getfile(torch.nn.parallel.DistributedDataParallel)
        modules = torch.nn.modules.module
        modules.register_module_module_registration_hook(self._registered)
        modules.register_module_parameter_registration_hook(self._registered)
        ROOTS.on_root.append(self._root_found)
        ROOTS.route = self._route
        CLOCK.before_step.append(or_stop_rank("gradients of ranks", self._before_step))
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            replace(torch.nn.utils, name, self._before_clipping)
        replace(torch.amp.GradScaler, "unscale_", self._before_unscaling)

    @stands_in
    def _before_clipping(
        self,
        original: Callable[..., Any],
        parameters: Tensor | Iterable[Tensor],
        *args: object,
        **kwargs: object,
    ) -> Any:
        """The norm is that of the gradients of the whole batch."""
        # an iterator can be read only once
        parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        self._settle(parameters)
        return original(parameters, *args, **kwargs)

    @stands_in
    def _before_unscaling(
        self, original: Callable[..., Any], scaler: GradScaler, optimizer: Optimizer
    ) -> Any:
        """All ranks find the same gradients to be infinite."""
        self._settle(parameters_of(optimizer))
        return original(scaler, optimizer)

    def _settle(self, parameters: Iterable[Tensor]) -> None:
        """Average the remaining gradients: the script is about to read or use them."""
        if not self._exchange or not self.active():
            return
        MEETINGS.next()
        for root in list(self._at_work):
            if root.waiting:
                self.passes.gradients_read()
                self._average(root)
        covered: set[int] = set()
        for root in self._of.values():
            module = root.module()
            covered.update(map(id, root.held or ([] if module is None else module.parameters())))
        new = self._unwrapped.collect(parameters, covered)
        if new:
            self.connect(new[0].device)
            take_from_rank_zero(new)
            average_gradients(new, self._rank_info.world_size)

    def active(self) -> bool:
        """True if the script leaves it to us: one that is distributed by itself runs as it is."""
        return (
            os.getpid() == self.pid
            and not any(trait in TRAITS.seen for trait in DISTRIBUTED_TRAITS)
            and (self._ours or not distributed.is_initialized())
        )

    def in_backward(self) -> bool:
        """True if a backward pass is under way: of checkpoints it calls modules again."""
        return bool(self._pass() != -1)

    def keeps_ranks_alike(self) -> bool:
        """True if there is anything to keep alike."""
        ours = self._ours and os.getpid() == self.pid
        return ours and self._exchange and any(True for _ in self.parameters())

    def parameters(self) -> Iterator[Tensor]:
        """The parameters of what is trained at present, alike on all ranks."""
        for root in list(self._at_work):
            if root.idle <= 1:
                yield from root.held
        yield from self._unwrapped.parameters()

    # -- a new root ---------------------------------------------------------------------------

    def _root_found(self, module: nn.Module) -> None:
        if not self.active() or not self._grad_enabled():
            return
        try:
            parameters = [p for p in module.parameters() if p.requires_grad]
            if not parameters:
                return
            MEETINGS.next()
            self.connect(parameters[0].device)
            take_from_rank_zero((*module.parameters(), *module.buffers()))
        except Exception as error:
            stop_rank(
                f"the ranks could not connect: {error_text(error)}",
                "see the logs of the ranks; without --ddp the script runs on one device",
            )
        key = id(module)
        self._of[key] = WrappedRoot(module)
        weakref.finalize(module, self._of.pop, key, None)

    def _registered(self, module: nn.Module, name: str, value: object) -> None:
        """Some module gets a layer or a parameter."""
        for root in list(self._of.values()):
            root.stale = True

    def connect(self, device: torch.device) -> None:
        """Begin the process group, if there is none yet."""
        if distributed.is_initialized():
            return
        self._ours = True
        if device.type == "cuda" and not self._shared_gpus:
            index = torch.cuda.current_device() if device.index is None else device.index
            distributed.init_process_group("nccl", device_id=torch.device("cuda", index))
        else:
            distributed.init_process_group("gloo")

    # -- its calls -----------------------------------------------------------------------------

    def _route(self, original: Callable[..., Any], module: nn.Module) -> Callable[..., Any]:
        """The function to call in place of `original`, torch's own `__call__`."""
        root = self._of.get(id(module))
        if root is None or not self.active():
            return original
        if not self._grad_enabled():
            if root.moved:
                root.moved = False
                MEETINGS.next()
                take_from_rank_zero(module.buffers())  # each has statistics of its own shards
            return original
        root.moved = True
        if not self.fed:
            self._rng.draw_apart()  # the script makes its batches itself: each rank others

        def call(module: nn.Module, *args: object, **kwargs: object) -> Any:
            try:
                with self._rng.apart_inside():  # after `next(iter(loader))` the iterator is gone
                    return self._called(root, original, module, args, kwargs)
            except BaseException as error:
                drop_frames(error, (__file__, self._of_torch))
                raise

        return call

    def _called(
        self,
        root: WrappedRoot,
        original: Callable[..., Any],
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        MEETINGS.next()
        first = first_tensor(args, kwargs)
        self.called_with = None if first is None else int(first.shape[0])
        for callback in self.on_call:
            callback()
        self._take_up(root, module)
        self.passes.called(root)
        root.through = root.fits() and (root.through or not root.called)
        root.called = True
        if root.wrapper is not None and root.through:
            last = self._is_last_pass()
            root.wrapper.require_backward_grad_sync = last
            root.waiting = not last
            return root.wrapper(*args, **kwargs)
        if not self._exchange:
            return original(module, *args, **kwargs)
        take_from_rank_zero(module.buffers())
        result = original(module, *args, **kwargs)
        if not root.by_hand and torch.is_grad_enabled():
            root.returned(result)
        return result

    def _take_up(self, root: WrappedRoot, module: nn.Module) -> None:
        """It is at work again, with the parameters that it has now."""
        root.idle = 0
        renewed = root.stale and root.renewed(module)
        if root not in self._at_work:
            self._at_work.append(root)
            root.hold(module)
        if renewed:
            take_from_rank_zero((*module.parameters(), *module.buffers()))
            root.hold(module)

    def _is_last_pass(self) -> bool:
        """True if a step follows on this backward pass, judged by the last steps.

        Gradients that are accumulated need be averaged but once. Where several models or optimizers
        take turns each pass counts.
        """
        alternate = len(self._at_work) > 1 or len(CLOCK.optimizers) > 1
        return alternate or self._static or self.passes.next_is_last()

    # -- gradients -----------------------------------------------------------------------------

    def before_backward(self) -> None:
        """Remember frozen parameters, and the gradients that no wrapper averages."""
        MEETINGS.next()
        self._frozen = [p for x in self._at_work for p in x.frozen_without_gradient()]
        for root in self._at_work:
            if not (root.called and root.through):
                root.mark()

    def after_backward(self) -> None:
        """Average the gradients that no wrapper averages."""
        for parameter in self._frozen:
            parameter.grad = None
        self.passes.over()
        for root in list(self._at_work):
            if not (root.called and root.through):  # a wrapper expects one pass for each call
                touched = root.look()
                if touched or root.wrapper is None:
                    self._average(root)
            root.called = root.through = False
        outside = self._unwrapped.parameters()
        if outside and self._exchange:
            average_gradients(outside, self._rank_info.world_size)

    def _average(self, root: WrappedRoot) -> None:
        root.waiting = False
        if root.held and self._exchange:
            missing = average_gradients(root.held, self._rank_info.world_size)
            root.unused = root.unused or missing

    def _before_step(self, optimizer: Optimizer) -> None:
        """Nothing that waits may be stepped with, nor may anything be missing."""
        if os.getpid() != self.pid:
            return
        self.passes.stepping()
        stepping = parameters_of(optimizer)
        self._unwrapped.stepped()
        self._settle(stepping)
        stepped = set(map(id, stepping))
        for root in list(self._at_work):
            root.idle += 1
            if root.idle > MOST_IDLE and not root.waiting:
                self._at_work.remove(root)
                root.held = []
            mine = [p for p in root.trainable() if id(p) in stepped]
            if mine:
                root.steps += 1
                self._between_steps(root, mine)

    def _between_steps(self, root: WrappedRoot, stepping: Sequence[Tensor]) -> None:
        """Have a wrapper for the parameters that are trained now."""
        if not self._exchange:
            if self._ours and root.steps <= MUTE_BARRIERS:
                distributed.all_reduce(torch.zeros_like(stepping[0]))
            return
        if root.idle == 1 and root.was_left_waiting(stepping):
            self._average(root)
            root.unused, root.wrapper = True, None
        if root.steps > LOOK_STEPS and not root.by_hand and not root.fits():
            self._wrap(root)

    def _wrap(self, root: WrappedRoot) -> None:
        module = root.module()
        if module is None:
            return
        try:
            root.wrap(module)
        except Exception as error:
            stop_rank(
                f"DistributedDataParallel refuses the model: {error_text(error)}",
                "run it without --ddp",
            )
        detail = type(module).__name__ + (", some parameters unused" if root.unused else "")
        RECORDER.event(TraitEvent(trait="hidden_ddp", detail=detail))

    def end(self) -> None:
        """End the process group, where it is ours.

        A reducer that is the last to hold the group ends it with Python's lock held. It then waits
        for ever for threads of gloo that need the lock to release their last work. So its group
        outlives it.
        """
        if self._ours and distributed.is_initialized():
            for root in self._of.values():
                if root.wrapper is not None:
                    for holder in ("logger", "reducer"):
                        root.wrapper.__dict__.pop(holder, None)
            distributed.destroy_process_group()


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """All that it updates."""
    return [p for group in optimizer.param_groups for p in group["params"]]
