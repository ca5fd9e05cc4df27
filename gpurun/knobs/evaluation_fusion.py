"""Evaluate with normalisations folded into the layers before them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from threading import Lock, get_ident
from types import ModuleType, TracebackType
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, KnobBase, Skip
from gpurun.knobs.fold_search import FoldSearch
from gpurun.knobs.folding import LAYERS, NORMS, Fold, computed, is_a
from gpurun.records.facts import Facts
from gpurun.records.frames import drop_frame

UNFIT = {
    "compile": "the script compiles by itself",
    "data_parallel": "DataParallel calls copies of the model",
}
NOTHING = nullcontext()
NO_PAIR = "no normalisation directly follows a convolution or linear layer"


class EvaluationFusion(KnobBase):
    """Batch normalisations are folded into the layer before them while a root module evaluates.

    Helps evaluation passes of convolutional networks, and scripts that only infer: each folded
    normalisation saves a read and a write of its activation and the launch of a kernel. The
    first evaluating call is watched: folded are those whose input is a layer's output that nothing
    else reads, if that gives the same figures. Weights are folded anew when they changed; the
    module, its parameters and its copies stay as they are.

    How it bites: folded weights take memory until training goes on, and sums round differently. A
    write that leaves no trace after the last training step (by raw pointers, into a tensor kept
    from `.data`) is not seen. Layers with forward hooks, compiled modules and shared parameters are
    left alone. A model that later takes another way through its layers may get one output wrong:
    the knob then stands aside.
    """

    name: ClassVar[str] = "evaluation_fusion"
    effect: ClassVar[Effect] = Effect.NUMERICS
    order: ClassVar[int] = 48

    def candidates(self, facts: Facts) -> Sequence[bool] | Skip:
        """On, where there is something to fold and an evaluation to gain in."""
        unfit = next((UNFIT[trait] for trait in UNFIT if trait in facts.traits), None)
        if unfit is not None:
            return Skip(unfit)
        if "compile" in facts.current or any(root.compiled for root in facts.roots):
            return Skip("the model is compiled")
        kinds = [root.module_types for root in facts.roots]
        if not any(_has(k, LAYERS) and _has(k, NORMS) for k in kinds):
            return Skip("the model has no batch normalisation after a convolution or linear layer")
        evaluation = [x for x in facts.loaders if x.key not in facts.training_loaders]
        if facts.result.clock != "forward" and not evaluation:
            return Skip("no loader is seen that the script could evaluate with")
        return [True]

    def apply(self, value: bool, hooks: Hooks) -> None:
        """Stand around the calls of the roots."""
        if value is not True:
            hooks.skipped(f"unknown value {value!r}")
            return
        evaluation = _Evaluation(hooks)
        hooks.on_import("torch", evaluation.torch_is_here)
        hooks.on_root(evaluation.root_found)
        hooks.around_root(evaluation.around)


def _has(kinds: dict[str, int], names: Sequence[str]) -> bool:
    return any(name in kinds for name in names)


class _Evaluation:
    """The context of an evaluating call of a root.

    While it is entered, a forward of ours stands in the place of that of torch's classes, so that
    no module is touched; other threads that come by there run the original.
    """

    def __init__(self, hooks: Hooks) -> None:
        from gpurun.runtime.identity import IdentityMap

        self._hooks = hooks
        self._folds: IdentityMap[list[Fold] | None] = IdentityMap()
        """By root; None until an evaluating call of it was watched."""
        self._alone = Lock()
        self._root: Any = None
        self._thread: int | None = None
        self._search: FoldSearch | None = None
        self._by_layer: dict[int, Fold] = {}
        self._pending: dict[int, tuple[Fold, Any, Any]] = {}
        """Folded outputs on their way to their normalisation, each with the layer's input."""
        self._originals: list[tuple[Any, Any]] = []
        self._stale = True
        """Whether weights are folded that may have changed without a sign."""

    def torch_is_here(self, torch: ModuleType) -> None:
        """Note who reads `.data` of a parameter: what is written there raises no version."""
        data = torch.Tensor.data
        evaluation = self

        def read(parameter: Any) -> Any:
            evaluation._stale = True
            return data.__get__(parameter)

        def write(parameter: Any, value: Any) -> None:
            evaluation._stale = True
            try:
                data.__set__(parameter, value)
            except BaseException as error:
                drop_frame(error)
                raise

        torch.nn.Parameter.data = property(read, write)

    def root_found(self, module: Any) -> None:
        """Fold in this root from now on, unless something speaks against it."""
        reason = next((UNFIT[t] for t in UNFIT if self._hooks.has_trait(t) is not None), None)
        if reason is None:
            reason = _unfit(module)
        if reason is None:
            self._folds[module] = None
        else:
            self._hooks.skipped(reason)

    def around(self, module: Any) -> AbstractContextManager[Any]:
        """The context for a call of this root: one that does nothing unless it evaluates."""
        import torch

        jit: Any = torch.jit
        if module.training or torch.is_grad_enabled():
            self._training()
            return NOTHING
        compiled = getattr(module, "_compiled_call_impl", None) is not None
        if compiled or module not in self._folds or jit.is_tracing():
            return NOTHING
        if not self._alone.acquire(blocking=False):
            return NOTHING  # another thread evaluates
        self._root = module
        return self

    def __enter__(self) -> None:
        try:
            if self._stale:
                self._stale = False
                self._forget()
            folds = self._folds.get(self._root)
            if folds is None:
                self._search = FoldSearch()
            else:
                self._by_layer = {id(fold.layer): fold for fold in folds if fold.prepare()}
            self._stand_in()
            if self._search is not None:
                self._search.enter()
        except BaseException:
            self._end()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        search, unread, root = self._search, bool(self._pending), self._root
        try:
            if search is not None:
                search.leave()
        finally:
            self._end()
        if kind is not None:
            return
        if search is not None:
            found = self._folds[root] = search.found()
            if found:
                self._hooks.applied(f"{len(found)} normalisations of {type(root).__name__}")
            else:
                self._hooks.skipped(NO_PAIR)
        elif unread:
            self._folds[root] = []
            self._hooks.skipped("the model does not always take the same way through its layers")

    def _end(self) -> None:
        for owner, original in self._originals:
            owner.forward = original
        self._originals, self._pending, self._by_layer = [], {}, {}
        self._thread = self._search = self._root = None
        self._alone.release()

    def _training(self) -> None:
        """Free what the last evaluation folded; optimizers may write without a trace."""
        if self._stale:
            return
        self._stale = True
        if self._alone.acquire(blocking=False):
            self._forget()
            self._alone.release()

    def _forget(self) -> None:
        for _, folds in self._folds.items():
            for fold in folds or ():
                fold.forget()

    # -- what stands in for the forward of torch's classes -------------------------------------

    def _stand_in(self) -> None:
        import torch
        from torch.nn.modules.batchnorm import _BatchNorm

        self._thread = get_ident()
        layers = [(getattr(torch.nn, name), self._layer_forward) for name in LAYERS]
        for owner, stand_in in (*layers, (_BatchNorm, self._norm_forward)):
            original = owner.forward
            self._originals.append((owner, original))
            owner.forward = functools.update_wrapper(stand_in(original), original)

    def _layer_forward(self, original: Any) -> Any:
        def forward(layer: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                output = self._folded(layer, args, kwargs)
                if output is None:
                    output = original(layer, *args, **kwargs)
                    if self._search is not None and self._is_mine(args, kwargs):
                        self._search.layer_returned(layer, args[0], output)
                return output
            except BaseException as error:
                drop_frame(error)
                raise

        return forward

    def _norm_forward(self, original: Any) -> Any:
        def forward(norm: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                x, folded_in = self._due(norm, args, kwargs)
                if folded_in is norm:
                    return x
                if folded_in is not None:
                    return original(norm, x)
                if self._search is None or not self._is_mine(args, kwargs):
                    return original(norm, *args, **kwargs)
                with self._search.inside():
                    output = original(norm, x)
                self._search.norm_returned(norm, x, output)
                return output
            except BaseException as error:
                drop_frame(error)
                raise

        return forward

    def _is_mine(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return get_ident() == self._thread and len(args) == 1 and not kwargs

    def _folded(self, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What layer and normalisation make of the input, None if that is the layer's own call."""
        fold = self._by_layer.get(id(layer))
        if fold is None or not self._is_mine(args, kwargs):
            return None
        try:
            output = fold(args[0])
        except Exception:
            return None  # the layer itself raises it
        self._pending[id(output)] = (fold, args[0], output)
        return output

    def _due(self, norm: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """The input of a normalisation, and the one that is folded into what made it, if one is.

        If that is another one, the input is made anew without it.
        """
        x = args[0] if args else None
        if not self._pending or not self._is_mine(args, kwargs):
            return x, None
        fold, before, _ = self._pending.pop(id(x), (None, None, None))
        if fold is None or fold.norm is norm:
            return x, None if fold is None else norm
        return computed(fold.layer, before, fold.layer.weight, fold.layer.bias), fold.norm


def _unfit(module: Any) -> str | None:
    """Why nothing can be folded in this root; None if it can be tried."""
    import torch

    modules = list(module.modules())
    if getattr(module, "_compiled_call_impl", None) is not None or hasattr(module, "_orig_mod"):
        return "the model is compiled"
    if any(isinstance(m, torch.jit.ScriptModule) for m in modules):
        return "a part of the model is a TorchScript module"
    found = all(any(is_a(m, names) for m in modules) for names in (LAYERS, NORMS))
    return None if found else NO_PAIR
