"""The interface of a knob. A file below this folder defines one such class, or helps those that do.

A knob is asked in the launcher what it may try (`candidates`), and turned in the user's process
(`apply`). At its top a file therefore imports only the standard library, `gpurun.records`,
`gpurun.errors` and `gpurun.knobs`. Inside functions that the launcher does not call it also imports
torch, and modules of a folder `applied`. It reaches the process through `Hooks` alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar, Protocol

from gpurun.knobs.source_forms import SourceForm
from gpurun.records.effects import Effect as Effect  # knobs import it from here
from gpurun.records.events import CompileEvent
from gpurun.records.facts import Facts
from gpurun.records.finding import FindingType


@dataclass(frozen=True)
class Skip:
    """A knob has nothing to try here, and why (one short clause, shown in the ladder)."""

    reason: str


NO_MODULE = Skip("no module is called while training")
"""What acts on a root module, or once there is one, finds none."""

# Reasons that the launcher and the user's process may both find.
SCRIPT_COMPILES = "the script compiles by itself"
COPIES_MODEL = "DataParallel calls copies of the model"
COPIES_STAY_PLAIN = f"{COPIES_MODEL}, which do not stay compiled"
NO_DOUBLE_BACKWARD = "create_graph=True: torch.compile supports no double backward"
MODEL_COMPILED = "the model is compiled"
NO_FOLDED_PAIR = (
    "no normalisation stands right behind a convolution or linear layer in an nn.Sequential"
)
NOT_FOLDED = {"compile": SCRIPT_COMPILES, "data_parallel": COPIES_MODEL}
"""By trait of the script, why nothing is folded."""
NOT_ON_GPU = "the model is not on a GPU"
OWN_PRECISION = {
    "autocast": "the script autocasts itself",
    "grad_scaler": "the script scales its gradients itself",
}
"""By trait of the script, why its forward is not cast."""
HALF_PARAMETERS = "the model holds half-precision parameters"
EMULATED_BFLOAT16 = "this processor only emulates bfloat16"


@dataclass
class LoaderCall:
    """The arguments with which the script is about to build a DataLoader; a knob may edit them.

    `arguments` is bound to the parameter names of `torch.utils.data.DataLoader.__init__` (absent:
    default). `training` tells whether this loader feeds training steps, None if not known yet.
    """

    key: str
    arguments: dict[str, Any]
    training: bool | None
    iterable: bool
    subclass: bool = False


class Hooks(Protocol):
    """The places of the user's process that a knob can reach. Every call-back of a knob is guarded:
    if it raises, it is switched off, the record says so, and the script goes on.
    """

    def on_import(self, module: str, callback: Callable[[ModuleType], None]) -> None:
        """Call back once `module` has been imported (at once if it already is)."""

    def before_loader(self, edit: Callable[[LoaderCall], None]) -> None:
        """Edit the arguments of each DataLoader before it is built (not of refusing subclasses)."""

    def after_optimizer(self, callback: Callable[[Any], None]) -> None:
        """Look at or change each optimizer right after it was built, before any scheduler is."""

    def on_root(self, callback: Callable[[Any], None]) -> None:
        """Receive each root module before its first training call (in place changes only)."""

    def around_root_call(
        self,
        context: Callable[[], AbstractContextManager[Any]],
        output: Callable[[Any], Any] | None = None,
        inputs: Callable[[Any], Any] | None = None,
    ) -> None:
        """Run every call of a root module inside `context()`; map what it returns by `output`.

        `inputs` maps what it is given, as the pair of its positional and its keyword arguments.
        """

    def around_backward(self, begins: Callable[[Any], Any], ended: Callable[[], None]) -> None:
        """Differentiate `begins(loss)` in place of each scalar loss on which the script itself
        calls `backward`; None leaves the loss. Only after another loss was given, `ended` is called
        once the gradients are there, or the pass has raised.

        Passes inside another one (checkpointing), with `gradient` or `inputs`, or with
        `create_graph` are left as they are.
        """

    def on_step(self, callback: Callable[[int], None]) -> None:
        """Call back after each step of the clock with its number, counted from 1."""

    def applied(self, detail: str = "") -> None:
        """Record that the knob took effect."""

    def skipped(self, reason: str) -> None:
        """Record that the knob could not apply here, and why."""

    def revoked(self, reason: str) -> None:
        """Record that the knob took effect and does no more, and why: it counts as skipped."""

    def runtime_only(self, reason: str) -> None:
        """Record that gpurun does more for the knob than its source forms say, and what."""

    def guarded(
        self, callback: Callable[..., Any], failed: Callable[[Exception], None] | None = None
    ) -> Callable[..., Any]:
        """Guard a call-back that the knob registers elsewhere, as all call-backs of it are.

        The first time that it raises it is switched off and returns None from then on; `failed`
        hears of the error. Without `failed` the whole knob counts as failed.
        """

    def record(self, event: CompileEvent) -> None:
        """Write into the record of this process that a compilation begins or ends."""

    def has_trait(self, trait: str) -> str | None:
        """The detail of something the script does by itself (see `TraitEvent`), or None."""


class Knob(ABC):
    """One thing that can be turned; a knob inherits this. Its docstring is its documentation.

    `name`, an identifier, and `effect` are the knob's own. `choices`: all that it can be set to; ()
    if `apply` judges that. `order`: when it is tried, small first (quick and certain before slow
    and doubtful). `acts_on`: the part of the step that it can shorten: "data", "model" (forward and
    backward), "optimizer" or "step" (anything). It is not tried where that part is too small to
    gain. `answers`: the findings whose cause it may remove; then it is tried sooner. `likely`: its
    first value gains so often that it is tried at once with others; a knob that loses as often is
    tried by itself. `saves_memory`: it can make a script fit that runs out of memory, with the same
    training. If `facts.out_of_memory`, later candidates save more memory. `most_values`: so many of
    its candidates are tried at most; refinements come on top. `stage`: the stage of the ladder to
    which a knob of the user's own belongs (`gpurun/knobs/stages.py`); without one its effect
    tells. `changes_steps`: a training of as many
    epochs has another number of optimizer steps. `early_imports`: modules that its values import
    anyway: a trial's process may do so beforehand.

    >>> from types import SimpleNamespace
    >>> class FlushDenormal(Knob):
    ...     name, effect = "flush_denormal", Effect.NUMERICS
    ...     def candidates(self, facts):
    ...         return [True] if facts.device == "cpu" else Skip("the model is not on the CPU")
    ...     def apply(self, value, hooks):
    ...         hooks.on_import("torch", lambda torch: torch.set_flush_denormal(value))
    >>> FlushDenormal().candidates(SimpleNamespace(device="cuda"))
    Skip(reason='the model is not on the CPU')
    """

    name: ClassVar[str]
    effect: ClassVar[Effect]
    choices: ClassVar[tuple[object, ...]] = ()
    order: ClassVar[int] = 100
    acts_on: ClassVar[str] = "step"
    answers: ClassVar[tuple[FindingType, ...]] = ()
    likely: ClassVar[bool] = False
    saves_memory: ClassVar[bool] = False
    most_values: ClassVar[int] = 2
    stage: ClassVar[str] = ""
    changes_steps: ClassVar[bool] = False
    early_imports: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def candidates(self, facts: Facts) -> Sequence[Any] | Skip:
        """Values worth trying on this ground, likeliest first, without the current one."""

    @abstractmethod
    def apply(self, value: Any, hooks: Hooks) -> None:
        """Turn the knob in the user's process."""

    def refine(self, facts: Facts, value: Any, gain: float) -> Any | None:
        """After `value` was tried and gained the factor `gain`: a further value to try, or None."""
        return None

    def companions(self, facts: Facts, value: Any) -> dict[str, Any]:
        """Settings of other knobs without which this value cannot show what it is worth."""
        return {}

    def is_likely(self, facts: Facts) -> bool:
        """`likely`, of this script."""
        return self.likely

    def source_forms(self, value: Any) -> Sequence[SourceForm]:
        """The value as the user would write it into the script; () if torch has no words for it."""
        return ()

    def environment(self, value: Any) -> dict[str, str]:
        """Environment variables that the value needs before python starts."""
        return {}

    def arguments(self, value: Any, argv: tuple[str, ...]) -> tuple[str, ...]:
        """The script's command line under this value."""
        return argv
