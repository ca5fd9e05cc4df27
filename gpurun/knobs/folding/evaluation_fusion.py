"""Evaluate with normalisations folded into the layers before them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from threading import Lock
from types import ModuleType, TracebackType
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, KnobBase, Skip
from gpurun.knobs.folding.applied.fold_search import FoldSearch
from gpurun.knobs.folding.applied.folded_forward import FoldedCall
from gpurun.knobs.folding.applied.weights import LAYERS, NORMS, Fold, is_a
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
    """Knows what can be folded in which root. It is the context of their evaluating calls."""

    def __init__(self, hooks: Hooks) -> None:
        from gpurun.identity_map import IdentityMap

        self._hooks = hooks
        self._folds: IdentityMap[dict[int, Fold] | None] = IdentityMap()
        """By root and layer; None until an evaluating call of the root was watched."""
        self._alone = Lock()
        self._root: Any = None
        self._call: FoldedCall | None = None
        self._writes = 0
        """What may have changed weights without raising their version, so far."""
        self._trained = True
        """Whether nothing is folded since the last training call."""

    def torch_is_here(self, torch: ModuleType) -> None:
        """Note who reads `.data` of a parameter: what is written there raises no version."""
        data = torch.Tensor.data
        evaluation = self

        def read(parameter: Any) -> Any:
            evaluation._writes += 1
            return data.__get__(parameter)

        def write(parameter: Any, value: Any) -> None:
            evaluation._writes += 1
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
        from torch.nn.modules import module as hooks

        if module.training or torch.is_grad_enabled():
            if not self._trained:
                self._forget()
            return NOTHING
        jit: Any = torch.jit
        compiled = getattr(module, "_compiled_call_impl", None) is not None
        watched = hooks._global_forward_hooks or hooks._global_forward_pre_hooks
        if compiled or watched or module not in self._folds or jit.is_tracing():
            return NOTHING
        if not self._alone.acquire(blocking=False):
            return NOTHING  # another thread evaluates
        self._root = module
        return self

    def __enter__(self) -> None:
        try:
            self._trained = False
            folds = self._folds.get(self._root)
            search = FoldSearch() if folds is None else None
            self._call = FoldedCall(folds or {}, search, lambda: self._writes)
            self._call.__enter__()
        except BaseException:
            if self._call is not None:
                self._call.restore()
            self._alone.release()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        call, root = self._call, self._root
        self._call = self._root = None
        try:
            if call is not None:
                call.__exit__(kind, error, trace)
                if kind is None:
                    self._learn(call, root)
        finally:
            self._alone.release()

    def _learn(self, call: FoldedCall, root: Any) -> None:
        """What a call has shown: what can be folded, or that it cannot."""
        if call.search is not None:
            found = self._folds[root] = {id(fold.layer): fold for fold in call.search.found()}
            if found:
                self._hooks.applied(f"{len(found)} normalisations of {type(root).__name__}")
            else:
                self._hooks.skipped(NO_PAIR)
        elif call.unread:
            self._folds[root] = {}
            self._hooks.skipped("the model does not always take the same way through its layers")

    def _forget(self) -> None:
        """Training goes on: free what was folded; optimizers may write without a trace."""
        self._writes += 1
        if self._alone.acquire(blocking=False):
            self._trained = True
            for _, folds in self._folds.items():
                for fold in (folds or {}).values():
                    fold.forget()
            self._alone.release()


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
