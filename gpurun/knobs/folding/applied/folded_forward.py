"""Run one call of a model with normalisations folded into the layers before them.

For the length of the call a forward of ours stands in the place of that of torch's classes, so that
no module is touched and none can be copied or pickled with it. Other threads that come by there,
and code that differentiates inside the call, get the original.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from threading import get_ident
from types import TracebackType
from typing import Any

from gpurun.knobs.folding.applied.fold_search import FoldSearch
from gpurun.knobs.folding.applied.weights import LAYERS, Fold, computed
from gpurun.records.frames import drop_frame


class FoldedCall:
    """The context of the call: uses `folds` (by the layer's id), or lets a search watch.

    `writes` counts what may have written to weights without raising their version.
    """

    def __init__(
        self, folds: dict[int, Fold], search: FoldSearch | None, writes: Callable[[], int]
    ) -> None:
        import torch

        self.search = search
        self._folds = folds
        self._writes = writes
        self._grad_enabled = torch.is_grad_enabled
        self._thread = get_ident()
        self._pending: dict[int, tuple[Fold, Any, Any]] = {}
        """Folded outputs on their way to their normalisation, each with the layer's input."""
        self._originals: list[tuple[Any, Any]] = []

    @property
    def unread(self) -> bool:
        """Whether a folded output went elsewhere than into its normalisation."""
        return bool(self._pending)

    def __enter__(self) -> None:
        import torch
        from torch.nn.modules.batchnorm import _BatchNorm

        layers = [(getattr(torch.nn, name), self._layer_forward) for name in LAYERS]
        for owner, stand_in in (*layers, (_BatchNorm, self._norm_forward)):
            original = owner.forward
            self._originals.append((owner, original))
            owner.forward = functools.update_wrapper(stand_in(original), original)
        if self.search is not None:
            self.search.enter()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.restore()
        if self.search is not None:
            self.search.leave()

    def restore(self) -> None:
        """Give torch's classes their own forward back."""
        for owner, original in self._originals:
            owner.forward = original

    def _layer_forward(self, original: Any) -> Any:
        def forward(layer: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                output = self._folded(layer, args, kwargs)
                if output is None:
                    output = original(layer, *args, **kwargs)
                    if self.search is not None and self._is_ours(args, kwargs):
                        self.search.layer_returned(layer, args[0], output)
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
                if self.search is None or not self._is_ours(args, kwargs):
                    return original(norm, *args, **kwargs)
                with self.search.inside():
                    output = original(norm, x)
                self.search.norm_returned(norm, x, output)
                return output
            except BaseException as error:
                drop_frame(error)
                raise

        return forward

    def _is_ours(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return get_ident() == self._thread and len(args) == 1 and not kwargs

    def _folded(self, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What layer and normalisation make of the input, None if that is the layer's own call."""
        fold = self._folds.get(id(layer))
        if fold is None or not self._is_ours(args, kwargs) or self._grad_enabled():
            return None
        try:
            if not fold.prepare(self._writes()):
                return None
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
        if not self._pending or not self._is_ours(args, kwargs):
            return x, None
        fold, before, _ = self._pending.pop(id(x), (None, None, None))
        if fold is None or fold.norm is norm:
            return x, None if fold is None else norm
        return computed(fold.layer, before, fold.layer.weight, fold.layer.bias), fold.norm
