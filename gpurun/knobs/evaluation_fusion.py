"""Evaluate with normalisations folded into the layers before them."""

from __future__ import annotations

from collections.abc import Sequence

from gpurun.knobs.api import MODEL_COMPILED, NOT_FOLDED, Effect, Hooks, Knob, Skip
from gpurun.records.facts import Facts

LAYERS = ("Conv1d", "Conv2d", "Conv3d", "Linear")
NORMS = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d")


class EvaluationFusion(Knob):
    """Batch normalisations in an `nn.Sequential` are folded into the layer before them.

    Helps evaluation passes of convolutional networks, and scripts that only infer. Each folded
    normalisation saves a read and a write of its activation and the launch of a kernel. It folds
    neighbours in an `nn.Sequential` (or a subclass with its forward, such as torchvision's
    `Conv2dNormActivation`). Only there the layer's output certainly goes into the normalisation and
    nowhere else. Weights are folded anew when they changed; the module, its parameters and its
    copies stay as they are.

    Risks: folded weights take memory until training goes on, and sums round differently. A write
    that leaves no trace after the last training step (by raw pointers, into a tensor kept from
    `.data`) is not seen. Layers with forward hooks and compiled modules are left alone, and so are
    models that call layer and normalisation in a forward of their own.
    """

    name = "evaluation_fusion"
    effect = Effect.NUMERICS
    choices = (True,)
    order = 48

    def candidates(self, facts: Facts) -> Sequence[bool] | Skip:
        """On, where there is something to fold and an evaluation to gain in."""
        unfit = next((NOT_FOLDED[trait] for trait in NOT_FOLDED if trait in facts.traits), None)
        if unfit is not None:
            return Skip(unfit)
        if "compile" in facts.current or facts.script_compiles():
            return Skip(MODEL_COMPILED)
        kinds = [root.module_types for root in facts.roots]
        if not any(_has(k, LAYERS) and _has(k, NORMS) for k in kinds):
            return Skip("the model has no batch normalisation after a convolution or linear layer")
        evaluation = [x for x in facts.loaders if x.key not in facts.training_loaders]
        if facts.result.clock != "forward" and not evaluation:
            return Skip("no loader is seen that the script could evaluate with")
        return [True]

    def apply(self, value: bool, hooks: Hooks) -> None:
        """Replace the forward of the sequences of each root when it is found."""
        from gpurun.knobs.applied.folded_sequences import FoldedSequences

        folded = FoldedSequences(hooks)
        hooks.on_root(folded.root_found)
        hooks.on_step(folded.step_done)


def _has(kinds: dict[str, int], names: Sequence[str]) -> bool:
    return any(name in kinds for name in names)
