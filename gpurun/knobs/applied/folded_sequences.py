"""Run `nn.Sequential` with normalisations folded into the layers before them while it evaluates.

A normalisation that evaluates is a linear map by channel: scaled weights and another bias of the
layer give the same figures in other rounding.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules
from torch.nn.utils.fusion import fuse_conv_bn_weights, fuse_linear_bn_weights

from gpurun.identity_map import IdentityMap
from gpurun.knobs.api import MODEL_COMPILED, NO_FOLDED_PAIR, NOT_FOLDED, Hooks
from gpurun.knobs.applied.autograd_state import recorded_otherwise
from gpurun.knobs.applied.replaced_calls import (
    Args,
    Forward,
    Kwargs,
    ReplacedForwards,
    cannot_choose,
)
from gpurun.records.frames import drop_frame, transparent

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
TOLERANCE = 0.02
"""Share of the largest figure that another order of rounding may change in bfloat16 and
TensorFloat-32. A wrong fold differs by about the whole figure."""


def is_pair(layer: nn.Module, norm: nn.Module) -> bool:
    """True if a layer and the module behind it are of torch's own classes that can be folded."""
    return type(layer) in (*CONVOLUTIONS, nn.Linear) and type(norm) in NORMS


class _Fold(NamedTuple):
    """Folded weights, and the tensors and versions that they were made of."""

    made_of: tuple[int, ...]
    weight: Tensor
    bias: Tensor


class FoldedLayer:
    """One layer and the normalisation behind it, with the weights of both in one."""

    def __init__(self, layer: Any, norm: Any) -> None:
        self.norm = norm
        self._layer = layer
        self._fold: _Fold | None = None
        """Set as a whole: other threads may evaluate, or forget it, at the same moment."""
        self._agrees: bool | None = None
        """True if the first input gave the same figures both ways, None before it."""

    def __call__(self, x: Tensor, writes: Writes) -> Tensor | None:
        """The output of layer and normalisation; None where their own calls must make it.

        `writes`: what may have written to weights without raising their version.
        """
        if self._agrees is False or self.norm.training or x.dim() != self._layer.weight.dim():
            return None
        if _is_watched(self._layer) or _is_watched(self.norm):
            return None
        try:
            fold = self._prepared(writes)
            if fold is None:
                return None
            output = self._computed(x, fold)
            if self._agrees is None:
                self._compare(x, output)
        except Exception:
            return None  # the layer itself raises it, or there is no room to fold
        return output if self._agrees else None

    def forget(self) -> None:
        """Free the folded weights; the next evaluation folds anew."""
        self._fold = None

    def _prepared(self, writes: Writes) -> _Fold | None:
        layer, norm = self._layer, self.norm
        tensors = layer.weight, layer.bias, norm.running_mean, norm.running_var
        present = [t for t in (*tensors, norm.weight, norm.bias) if t is not None]
        if norm.running_mean is None or any(map(_changes_unseen, present)):
            return None
        made_of = (writes.count, *(n for t in present for n in (t.data_ptr(), t._version)))
        fold = self._fold
        if fold is None or made_of != fold.made_of:
            fuse = fuse_linear_bn_weights if type(layer) is nn.Linear else fuse_conv_bn_weights
            gain = torch.ones_like(norm.running_var) if norm.weight is None else norm.weight
            shift = torch.zeros_like(norm.running_var) if norm.bias is None else norm.bias
            writes.folded(present)
            self._fold = fold = _Fold(made_of, *fuse(*tensors, norm.eps, gain, shift))
        return fold

    def _computed(self, x: Tensor, fold: _Fold) -> Tensor:
        if type(self._layer) is nn.Linear:
            return nn.functional.linear(x, fold.weight, fold.bias)
        output: Tensor = self._layer._conv_forward(x, fold.weight, fold.bias)
        return output

    def _compare(self, x: Tensor, output: Tensor) -> None:
        right = self.norm(self._layer(x))
        error = (output - right).abs().max()
        self._agrees = bool(error <= TOLERANCE * right.abs().max())


class Writes:
    """Counts what may write to weights without raising their version.

    Whoever reads or sets `.data` of a tensor (a value of a state dict and a buffer are plain
    tensors) or shares one with numpy may write there, at once or later. So a change between
    training and evaluating counts too. Tensors that share no memory with what was folded do not
    count: a loop may read `.data` of each output.
    """

    def __init__(self) -> None:
        self.count = 0
        self._folded: set[int] = set()
        """Addresses of the storages that were folded."""
        data: Any = Tensor.data

        def read(tensor: Tensor) -> Tensor:
            self._shared(tensor)
            found: Tensor = data.__get__(tensor)
            return found

        def write(tensor: Tensor, value: Tensor) -> None:
            self._shared(tensor)
            try:
                data.__set__(tensor, value)
            except BaseException as error:
                drop_frame(error)
                raise

        Tensor.data = property(read, write)  # type: ignore[assignment]
        numpy, train = Tensor.numpy, nn.Module.train

        @functools.wraps(numpy)
        @transparent
        def to_numpy(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            self._shared(tensor)
            return numpy(tensor, *args, **kwargs)

        @functools.wraps(train)
        @transparent
        def to_mode(module: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
            self.count += 1
            return train(module, *args, **kwargs)

        Tensor.numpy = to_numpy  # type: ignore[assignment]
        nn.Module.train = to_mode  # type: ignore[assignment]

    def folded(self, tensors: Iterable[Tensor]) -> None:
        """From now on writes to the memory of these count."""
        self._folded.update(tensor.untyped_storage().data_ptr() for tensor in tensors)

    def forget(self) -> None:
        """Nothing is folded any more."""
        self.count += 1
        self._folded.clear()

    def _shared(self, tensor: Tensor) -> None:
        if torch.compiler.is_compiling():
            self.count += 1
        elif self._folded:
            try:
                self.count += tensor.untyped_storage().data_ptr() in self._folded
            except Exception:  # sparse tensors and those without data have no storage
                self.count += 1


def _is_watched(module: nn.Module) -> bool:
    """True if its own call does more than its forward: hooks look, or make the weights."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._compiled_call_impl is not None
        or "forward" in vars(module)
    )


def _changes_unseen(tensor: Tensor) -> bool:
    """Tensors of inference mode have no version, and other processes may write into shared ones."""
    shared: bool = not tensor.is_cuda and tensor.is_shared()  # type: ignore[no-untyped-call]
    return shared or tensor.is_inference()


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
        reason = next(
            (NOT_FOLDED[t] for t in NOT_FOLDED if self._hooks.has_trait(t) is not None), None
        )
        if root._compiled_call_impl is not None or hasattr(root, "_orig_mod"):
            reason = reason or MODEL_COMPILED
        found = list(_sequences(root))
        if reason is not None or not found:
            self._hooks.skipped(reason or NO_FOLDED_PAIR)
            return
        pairs = sum(sum(map(is_pair, sequence, [*sequence][1:])) for sequence in found)
        for sequence in found:
            self._forwards.choose(sequence, f"{pairs} normalisations of {type(root).__name__}")

    def step_done(self, step: int) -> None:
        """Free what was folded: training goes on, and optimizers may write without a trace."""
        self._writes.forget()
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
        output = fold(x, self._writes)
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
