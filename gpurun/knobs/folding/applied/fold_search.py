"""Find the normalisations that follow a layer directly, by watching one evaluation call.

Nothing is concluded from where modules stand in the tree: what counts is that the output of the
layer went into the normalisation and nowhere else, and that folding gives the same figures.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gpurun.knobs.folding.applied.weights import (
    LAYERS,
    NORMS,
    Fold,
    can_fold,
    computed,
    folded,
    is_a,
    tensors_of,
)
from gpurun.records.frames import drop_frame

TOLERANCE = 0.02
"""Of the largest figure: what bfloat16 and TensorFloat-32 make of another order of rounding. A fold
that is wrong is off by all of it."""


class FoldSearch:
    """Watches the layers and normalisations of one call of a module, between `enter` and `leave`.

    A look that raises ends in nothing found, never in the call.
    """

    def __init__(self) -> None:
        import torch
        from torch.overrides import TorchFunctionMode

        used, look = self._used, self._look

        class Uses(TorchFunctionMode):
            def __torch_function__(
                self, function: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                try:
                    look(used, args, kwargs or {})
                    return function(*args, **(kwargs or {}))
                except BaseException as error:
                    drop_frame(error)
                    raise

        self._uses: Any = Uses()
        self._tensor = torch.Tensor
        self._last: tuple[Any, Any, Any] | None = None
        self._outputs: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._inside = False
        """Whether a normalisation reads its own input."""
        self._layers: dict[int, Any] = {}
        self._norms: dict[int, Any] = {}
        self._followed: dict[int, set[int]] = {}
        """By layer, the normalisations that its outputs went into."""
        self._fed: dict[int, set[int]] = {}
        """By normalisation, the layers that its inputs came from (0: from elsewhere)."""
        self._spoiled: set[int] = set()
        self._failed = False

    def enter(self) -> None:
        """Begin to see who reads a layer's output."""
        self._uses.__enter__()

    def leave(self) -> None:
        """The call is over."""
        self._uses.__exit__(None, None, None)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """While a normalisation runs."""
        self._inside = True
        try:
            yield
        finally:
            self._inside = False

    def layer_returned(self, layer: Any, x: Any, output: Any) -> None:
        """A layer made `output` of `x`."""
        self._look(self._see_layer, layer, x, output)

    def norm_returned(self, norm: Any, x: Any, output: Any) -> None:
        """A normalisation made `output` of `x`."""
        with self.inside():
            self._look(self._see_norm, norm, x, output)

    def found(self) -> list[Fold]:
        """The pairs of which each only ever met the other. For when the call is over: an output
        that is still there then is kept by somebody.
        """
        self._last = None
        if self._failed:
            return []
        self._spoiled.update(
            layer for output, layer in self._outputs.values() if output() is not None
        )
        return [Fold(self._layers[layer], self._norms[norm]) for layer, norm in self._pairs()]

    def _look(self, look: Callable[..., None], *at: Any) -> None:
        try:
            look(*at)
        except Exception:
            self._failed = True

    def _see_layer(self, layer: Any, x: Any, output: Any) -> None:
        if is_a(layer, LAYERS):
            self._layers[id(layer)] = layer
            self._last = (layer, x, output)
            self._outputs[id(output)] = (weakref.ref(output), id(layer))
            self._followed.setdefault(id(layer), set())

    def _see_norm(self, norm: Any, x: Any, output: Any) -> None:
        last, self._last = self._last, None
        source = 0
        if is_a(norm, NORMS) and last is not None and last[2] is x:
            source = id(last[0])
            self._followed[source].add(id(norm))
            if not self._agrees(last[0], norm, last[1], output):
                self._spoiled.add(source)
        self._norms[id(norm)] = norm
        self._fed.setdefault(id(norm), set()).add(source)

    def _pairs(self) -> Iterator[tuple[int, int]]:
        for layer, norms in self._followed.items():
            if len(norms) == 1 and layer not in self._spoiled:
                (norm,) = norms
                if self._fed[norm] == {layer}:
                    yield layer, norm

    def _agrees(self, layer: Any, norm: Any, x: Any, output: Any) -> bool:
        if norm.training or not can_fold(layer, norm):
            return False
        try:
            mine = computed(layer, x, *folded(tensors_of(layer, norm), norm.eps))
            return bool((mine - output).abs().max() <= TOLERANCE * output.abs().max())
        except Exception:
            return False  # no room for it, or shapes in which channels are not what they seem

    def _used(self, args: Any, kwargs: dict[str, Any]) -> None:
        """Something read tensors: a layer's output is for its normalisation alone."""
        if self._inside:
            return
        for value in (*args, *kwargs.values()):
            for item in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(item, self._tensor):
                    known = self._outputs.get(id(item))
                    if known is not None and known[0]() is item:
                        self._spoiled.add(known[1])
