"""Compile the model in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, KnobBase, Skip
from gpurun.knobs.applied.root_outputs import COPIED_LATER
from gpurun.knobs.applied.tensor_trees import map_tensors
from gpurun.knobs.compiling.applied.compilations import Compilations
from gpurun.knobs.compiling.applied.graph_rewrites import compile_in_place
from gpurun.knobs.compiling.compiler_requirements import GRAPH_MODES, missing_on, missing_tool
from gpurun.knobs.loss.applied.padded_logits import copy_of
from gpurun.records.facts import Facts

MODES = ("default", *GRAPH_MODES)
SECONDS_A_MODULE = 0.3
MOST_SECONDS = 120.0
ON_A_GPU = ("reduce-overhead", "default", "max-autotune")
BUSY_PERCENT = 80.0
"""A GPU so busy does not wait for the host: what graphs copy is then more than what they save."""


class Compile(KnobBase):
    """`module.compile(mode=...)` on the root module, in place: keys, class and pickles stay.

    "default" fuses kernels; "reduce-overhead" also records CUDA graphs, which pays for small
    kernels (2.3× on ResNet-50 at batch 32), and not where they keep the GPU busy: inputs and
    outputs of graphs are copied. "max-autotune" also searches matrix-product kernels.

    How it bites: compiling takes seconds to minutes at the first step and again when shapes change
    (a partial last batch, evaluation). CUDA graphs overwrite their outputs at the next step, so
    what the root returns is cloned; they fail under gradient accumulation, where the model runs
    eager instead. Double backward and `jit.trace` do not work. Scripts that compile are left alone.
    """

    name: ClassVar[str] = "compile"
    effect: ClassVar[Effect] = Effect.NUMERICS
    order: ClassVar[int] = 22
    acts_on: ClassVar[str] = "model"
    startup_seconds: ClassVar[float] = 10.0
    early_imports: ClassVar[tuple[str, ...]] = ("torch._functorch.aot_autograd",)
    """Not the inductor: its import starts a process for each core."""

    def candidates(self, facts: Facts) -> Sequence[str] | Skip:
        """CUDA graphs first, where device and script can take them: they lose the least."""
        if "compile" in facts.traits or any(root.compiled for root in facts.roots):
            return Skip("the script compiles by itself")
        if "data_parallel" in facts.traits:
            return Skip("DataParallel calls copies of the model, which do not stay compiled")
        if not facts.roots:
            return Skip("no module is called while training")
        missing = missing_tool(facts.device, facts.machine.compute_capability)
        if missing is not None:
            return Skip(missing)
        if facts.device != "cuda" or _accumulates(facts):
            return MODES[:1]
        busy = facts.result.gpu_utilization_percent or 0.0
        if self.name in facts.current and busy >= BUSY_PERCENT:
            return sorted(ON_A_GPU, key=GRAPH_MODES.__contains__)
        return ON_A_GPU

    def is_likely(self, facts: Facts) -> bool:
        """With CUDA graphs: few launches are what half precision and fused kernels wait for."""
        return facts.device == "cuda" and not _accumulates(facts)

    def seconds_to_start(self, facts: Facts) -> float:
        """By the number of submodules: an H200's host took 13 s for 7 of them, 60 s for 160."""
        modules = sum(sum(root.module_types.values()) for root in facts.roots)
        return min(self.startup_seconds + SECONDS_A_MODULE * modules, MOST_SECONDS)

    def apply(self, value: str, hooks: Hooks) -> None:
        """Compile each root when it is found."""
        if value not in MODES:
            hooks.skipped(f"unknown mode {value!r}")
            return
        watch = _Watch(hooks)
        graphs = _GraphSteps(watch.give_up) if value in GRAPH_MODES else None

        def compile_root(module: Any) -> None:
            device = next(module.parameters()).device
            reason = _unfit(module, device, hooks)
            if reason is not None:
                hooks.skipped(reason)
                return
            watch.begin(f"{type(module).__name__}: {value}")
            compile_in_place(module, value)
            if graphs is not None and device.type == "cuda":
                graphs.modules.append(module)

        hooks.on_root(compile_root)
        hooks.on_step(watch.step_done)
        if graphs is not None:
            hooks.on_step(graphs.step_done)
            hooks.around_root_call(lambda: graphs, graphs.output)


class _Watch:
    """Tells what became of the compiling: applied is what has graphs to run."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._compilations = Compilations(self.give_up)
        self._waiting: list[str] = []
        self._begun = self._over = False

    def begin(self, root: str) -> None:
        """A root is about to be compiled, at its next call."""
        if not self._begun:
            self._begun = True
            self._compilations.install()
        if not self._over:
            self._waiting.append(root)

    def step_done(self, step: int) -> None:
        """Look whether there are graphs by now."""
        if not self._waiting:
            return
        if self._compilations.graphs:
            for root in self._waiting:
                self._hooks.applied(root)
            self._waiting.clear()
        elif step == 1:
            self._hooks.skipped("torch finds nothing in the model's forward that it can compile")

    def give_up(self, reason: str) -> None:
        """A part of the model runs without being compiled: nothing counts as applied any more."""
        self._over = True
        self._waiting.clear()
        self._hooks.revoked(reason)


class _GraphSteps:
    """Tells CUDA graphs where a step begins, and gives them up under gradient accumulation.

    It is the context of each root call.
    """

    def __init__(self, give_up: Callable[[str], None]) -> None:
        self.modules: list[Any] = []
        self._tell = give_up
        self._training_calls = 0

    def __enter__(self) -> None:
        import torch

        if not self.modules:
            return
        if self._training_calls == 0:
            # also before evaluation calls, or their outputs pile up in one endless step
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        if torch.is_grad_enabled():
            self._training_calls += 1
            if self._training_calls > len(self.modules):
                self._give_up()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    def step_done(self, step: int) -> None:
        """The next root call begins a step."""
        self._training_calls = 0

    def output(self, value: Any) -> Any:
        """A copy of what the root returned, which the next step does not overwrite."""
        return map_tensors(value, _clone) if self.modules else value

    def _give_up(self) -> None:
        for module in self.modules:
            module._compiled_call_impl = None
        self.modules.clear()
        self._tell("several forward passes a step: CUDA graphs would overwrite the first")


def _unfit(module: Any, device: Any, hooks: Hooks) -> str | None:
    if hooks.has_trait("compile") is not None or hasattr(module, "_orig_mod"):
        return "the script compiles by itself"
    if getattr(module, "_compiled_call_impl", None) is not None:
        return "the script compiles by itself"
    if hooks.has_trait("data_parallel") is not None:
        return "DataParallel calls copies of the model, which do not stay compiled"
    return missing_on(device)


def _accumulates(facts: Facts) -> bool:
    """Whether a step takes several batches of the training loader."""
    sizes = [x.batch_size for x in facts.loaders_of_training() if x.batch_size]
    a_step = facts.result.batch_size
    return bool(sizes) and a_step is not None and a_step > 1.5 * max(sizes)


def _clone(tensor: Any) -> Any:
    kept = not tensor.is_cuda or any(copies(tensor) for copies in COPIED_LATER)
    return tensor if kept else copy_of(tensor)
