"""Compile the model in place."""

from __future__ import annotations

from collections.abc import Sequence

from gpurun.knobs.api import (
    COPIES_STAY_PLAIN,
    NO_DOUBLE_BACKWARD,
    NO_MODULE,
    SCRIPT_COMPILES,
    Effect,
    Hooks,
    Knob,
    Skip,
)
from gpurun.knobs.device_requirements import GRAPH_MODES, REGIONAL, missing_tool
from gpurun.knobs.source_forms import AfterOptimizer, SourceForm
from gpurun.records.facts import Facts
from gpurun.records.finding import FindingType
from gpurun.records.messages.traits import CHANGING_SHAPES, DOUBLE_BACKWARD, KEEPS_TENSORS

MODES = (REGIONAL, "default", *GRAPH_MODES)
ON_A_GPU = ("reduce-overhead", "default", "max-autotune")
BUSY_PERCENT = 80.0
"""A GPU so busy does not wait for the host: what graphs copy is then more than what they save."""


class Compile(Knob):
    """`module.compile(mode=...)` on the root module, in place: keys, class and pickles stay.

    "regional" fuses the kernels of blocks of layers that the model repeats, such as those of a
    transformer. They are compiled once for all of them, and the code around them runs as it is: the
    start takes a part of the time. "default" fuses kernels of the whole model. "reduce-overhead"
    also records CUDA graphs. They pay for small kernels (2.3× on ResNet-50 at batch 32), but not if
    these keep the GPU busy: inputs and outputs of graphs are copied. "max-autotune" also searches
    matrix-product kernels.

    Risks: compiling takes seconds to minutes at the first step and again when shapes change. The
    last, smaller batch of a longer epoch runs the model's own code, where there is memory for it.
    CUDA graphs overwrite their outputs at the next step, so the root's outputs are cloned. CUDA
    graphs fail under gradient accumulation, and in a model that keeps a tensor of a step. Each
    shape of the inputs takes a recording of its own. In the first two cases, and where shapes are
    many, the model is compiled by "default". Scripts that compile are left alone, and so are those
    with `create_graph=True` (double backward). A call runs the model's own code while it is traced
    (`jit.trace`), while hooks are there that came after the first call, and where an input is a
    leaf that requires a gradient: a gradient penalty differentiates it twice. Other double backward
    passes raise an error if only an installed library asks for them, and no trial has seen one.
    """

    name = "compile"
    answers = (
        FindingType.LAUNCH_BOUND,
        FindingType.KERNEL_EFFICIENCY,
        FindingType.MEMORY_BANDWIDTH,
    )
    effect = Effect.NUMERICS
    choices = MODES
    order = 22
    acts_on = "model"
    early_imports = ("torch._functorch.aot_autograd", "torch._inductor.compile_fx")

    def candidates(self, facts: Facts) -> Sequence[str] | Skip:
        """CUDA graphs first, where device and script can take them: they lose the least. Repeated
        blocks start soonest, and are tried where the whole model does not start in time: GPT-124M
        on an H200 took 21.6 ms a step as a whole, 39.6 by blocks.
        """
        if facts.script_compiles():
            return Skip(SCRIPT_COMPILES)
        if "data_parallel" in facts.traits:
            return Skip(COPIES_STAY_PLAIN)
        if DOUBLE_BACKWARD in facts.traits:
            return Skip(f"{facts.traits[DOUBLE_BACKWARD]}: {NO_DOUBLE_BACKWARD}")
        if not facts.roots:
            return NO_MODULE
        missing = missing_tool(facts.device, facts.machine.compute_capability)
        if missing is not None:
            return Skip(missing)
        blocks = [REGIONAL] if any(root.blocks for root in facts.roots) else []
        if not _takes_graphs(facts):
            return [*blocks, "default"]
        if self.name not in facts.current:
            return [ON_A_GPU[0], *blocks, *ON_A_GPU[1:]]
        percent = facts.result.gpu_utilization_percent
        if percent is not None and percent < BUSY_PERCENT:
            return ON_A_GPU[:1]  # it waits for the host: no other mode launches less
        return sorted(ON_A_GPU, key=lambda mode: percent is not None and mode in GRAPH_MODES)

    def is_likely(self, facts: Facts) -> bool:
        """With CUDA graphs: few launches are what half precision and fused kernels wait for."""
        return _takes_graphs(facts)

    def source_forms(self, value: str) -> Sequence[SourceForm]:
        """`Module.compile`, which changes neither the model's class nor its keys."""
        mode = "" if value not in ON_A_GPU or value == "default" else f'mode="{value}"'
        return [AfterOptimizer(f"{{model}}.compile({mode})")]

    def apply(self, value: str, hooks: Hooks) -> None:
        """Compile each root when it is found."""
        from gpurun.knobs.applied.compiling.compiled_roots import compile_roots

        compile_roots(value, hooks)


def _takes_graphs(facts: Facts) -> bool:
    """False if CUDA graphs would overwrite what is still needed, or be recorded all the time."""
    unfit = facts.traits.keys() & {KEEPS_TENSORS, CHANGING_SHAPES}
    return facts.device == "cuda" and not unfit and not _accumulates(facts)


def _accumulates(facts: Facts) -> bool:
    """True if a step takes several batches of the training loader."""
    sizes = [x.batch_size for x in facts.loaders_of_training() if x.batch_size]
    a_step = facts.result.batch_size
    return bool(sizes) and a_step is not None and a_step > 1.5 * max(sizes)
