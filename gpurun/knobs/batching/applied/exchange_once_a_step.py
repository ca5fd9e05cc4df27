"""Exchange gradients between ranks once a step of several batches."""

from __future__ import annotations

from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from gpurun.knobs.batching.applied.accumulated_steps import AccumulatedSteps


class GradientExchange:
    """Lets DDP exchange gradients with the last batch of a step only; a context of root calls."""

    def __init__(self, steps: AccumulatedSteps) -> None:
        self._steps = steps
        self._roots: list[DistributedDataParallel] = []

    def root_found(self, module: Module) -> None:
        """Look whether it is one that exchanges gradients."""
        if isinstance(module, DistributedDataParallel):
            self._roots.append(module)

    def __enter__(self) -> None:
        if self._steps.active:
            for root in self._roots:
                root.require_backward_grad_sync = self._steps.last

    def __exit__(self, *_: object) -> None:
        return None

    def every_batch(self) -> None:
        """Exchange gradients with every batch again."""
        for root in self._roots:
            root.require_backward_grad_sync = True
