"""Compile the model in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from gpurun.knobs.api import NO_MODULE, Effect, Hooks, Knob, Skip
from gpurun.knobs.compiling.compiler_requirements import GRAPH_MODES, missing_tool
from gpurun.records.events import CHANGING_SHAPES, DOUBLE_BACKWARD, KEEPS_TENSORS
from gpurun.records.facts import Facts
from gpurun.records.finding import FindingType

MODES = ("default", *GRAPH_MODES)
ON_A_GPU = ("reduce-overhead", "default", "max-autotune")
BUSY_PERCENT = 80.0
"""A GPU so busy does not wait for the host: what graphs copy is then more than what they save."""
BY_ITSELF = "the script compiles by itself"
COPIES_MODEL = "DataParallel calls copies of the model, which do not stay compiled"
CANNOT_TWICE = "create_graph=True: torch.compile supports no double backward"


class Compile(Knob):
    """`module.compile(mode=...)` on the root module, in place: keys, class and pickles stay.

    "default" fuses kernels of the whole model. "reduce-overhead" also records CUDA graphs. They pay
    for small kernels (2.3× on ResNet-50 at batch 32), but not if these keep the GPU busy: inputs
    and outputs of graphs are copied. "max-autotune" also searches matrix-product kernels.

    Blocks of layers that the model repeats, such as those of a transformer, are compiled once for
    all of them, which shortens the start (torch 2.9 or later). That needs a model of one graph,
    whose blocks change no buffer. Else torch compiles each block by itself; the record says why.

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

    name: ClassVar[str] = "compile"
    answers: ClassVar[tuple[FindingType, ...]] = (
        FindingType.LAUNCH_BOUND,
        FindingType.KERNEL_EFFICIENCY,
        FindingType.MEMORY_BANDWIDTH,
    )
    effect: ClassVar[Effect] = Effect.NUMERICS
    choices: ClassVar[tuple[str, ...]] = MODES
    order: ClassVar[int] = 22
    acts_on: ClassVar[str] = "model"
    early_imports: ClassVar[tuple[str, ...]] = (
        "torch._functorch.aot_autograd",
        "torch._inductor.compile_fx",
    )

    def candidates(self, facts: Facts) -> Sequence[str] | Skip:
        """CUDA graphs first, where device and script can take them: they lose the least."""
        if facts.script_compiles():
            return Skip(BY_ITSELF)
        if "data_parallel" in facts.traits:
            return Skip(COPIES_MODEL)
        if DOUBLE_BACKWARD in facts.traits:
            return Skip(f"{facts.traits[DOUBLE_BACKWARD]}: {CANNOT_TWICE}")
        if not facts.roots:
            return NO_MODULE
        missing = missing_tool(facts.device, facts.machine.compute_capability)
        if missing is not None:
            return Skip(missing)
        if not _takes_graphs(facts):
            return ["default"]
        if self.name not in facts.current:
            return ON_A_GPU
        percent = facts.result.gpu_utilization_percent
        if percent is not None and percent < BUSY_PERCENT:
            return ON_A_GPU[:1]  # it waits for the host: no other mode launches less
        return sorted(ON_A_GPU, key=lambda mode: percent is not None and mode in GRAPH_MODES)

    def is_likely(self, facts: Facts) -> bool:
        """With CUDA graphs: few launches are what half precision and fused kernels wait for."""
        return _takes_graphs(facts)

    def apply(self, value: str, hooks: Hooks) -> None:
        """Compile each root when it is found."""
        from gpurun.knobs.compiling.applied.compiled_roots import compile_roots

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
