"""Run `nn.Sequential` with normalisations folded into the layers before them while it evaluates."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules

from gpurun.identity_map import IdentityMap
from gpurun.knobs.api import Hooks
from gpurun.knobs.applied.autograd_state import recorded_otherwise
from gpurun.knobs.applied.call_types import Args, Forward, Kwargs
from gpurun.knobs.applied.replaced_forwards import ReplacedForwards, cannot_choose
from gpurun.knobs.folding.applied.folded_layers import FoldedLayer, Writes, is_pair
from gpurun.knobs.folding.evaluation_fusion import COMPILED, NO_PAIR, UNFIT
from gpurun.records.frames import drop_frame

_OF_TORCH = inspect.unwrap(nn.Sequential.forward)


class FoldedSequences:
    """The sequences of this process in which a normalisation stands right behind a layer.

    The forward of a sequence hands the output of each module to the next one and to nobody else,
    whatever the input. So a fold gives the same figures however the model goes on.
    """

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._writes = Writes()
        self._forwards: ReplacedForwards[str] = ReplacedForwards(self._run)
        self._folds: IdentityMap[FoldedLayer] = IdentityMap()

    def root_found(self, root: nn.Module) -> None:
        """Choose the sequences of a new root, unless something speaks against it."""
        reason = next((UNFIT[t] for t in UNFIT if self._hooks.has_trait(t) is not None), None)
        if root._compiled_call_impl is not None or hasattr(root, "_orig_mod"):
            reason = reason or COMPILED
        found = list(_sequences(root))
        if reason is not None or not found:
            self._hooks.skipped(reason or NO_PAIR)
            return
        pairs = sum(sum(map(is_pair, sequence, [*sequence][1:])) for sequence in found)
        for sequence in found:
            self._forwards.choose(sequence, f"{pairs} normalisations of {type(root).__name__}")

    def step_done(self, step: int) -> None:
        """Free what was folded: training goes on, and optimizers may write without a trace."""
        self._writes.count += 1
        for _, fold in self._folds.items():
            fold.forget()

    def _run(
        self, sequence: nn.Sequential, found: str, original: Forward, args: Args, kwargs: Kwargs
    ) -> object:
        ours = len(args) == 1 and not kwargs and isinstance(args[0], Tensor)
        if not ours or sequence.training or torch.is_grad_enabled() or _watched(args):
            return original(sequence, *args, **kwargs)
        x: Tensor = args[0]
        done: nn.Module | None = None
        modules = list(sequence)
        try:
            for module, following in zip(modules, [*modules[1:], None], strict=True):
                if module is done:
                    done = None
                    continue
                folded = None if following is None else self._folded(module, following, x, found)
                done = None if folded is None else following
                x = module(x) if folded is None else folded
        except BaseException as error:
            drop_frame(error)
            raise
        return x

    def _folded(self, layer: nn.Module, norm: nn.Module, x: Tensor, found: str) -> Tensor | None:
        """The output of both, None where they are to be called themselves."""
        if not is_pair(layer, norm) or not isinstance(x, Tensor):
            return None
        fold = self._folds.get(layer)
        if fold is None or fold.norm is not norm:
            fold = self._folds[layer] = FoldedLayer(layer, norm)
        output = fold(x, self._writes.count)
        if output is not None:
            self._hooks.applied(found)
        return output


def _sequences(root: nn.Module) -> Iterator[nn.Sequential]:
    for module in root.modules():
        if isinstance(module, nn.Sequential) and inspect.unwrap(type(module).forward) is _OF_TORCH:
            if cannot_choose(module) is None and any(map(is_pair, module, [*module][1:])):
                yield module


def _watched(args: Args) -> bool:
    """True if somebody looks at each call of a module, or traces it."""
    hooks = torch_modules._global_forward_hooks or torch_modules._global_forward_pre_hooks
    return bool(hooks) or recorded_otherwise(args)
