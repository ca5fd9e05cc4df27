"""When knobs that save memory and cost time are worth a trial."""

from __future__ import annotations

from gpurun.knobs.api import NO_MODULE, Hooks, Skip
from gpurun.records.facts import Facts


def not_needed(facts: Facts) -> Skip | None:
    """Why memory is not to be paid for with time here, None if it is."""
    if not memory_is_scarce(facts):
        return Skip(
            "saves memory, costs time: for --objective memory or a script that does not fit"
        )
    if not facts.roots:
        return NO_MODULE
    return unfit(facts.traits, any(root.compiled for root in facts.roots), facts.current)


def memory_is_scarce(facts: Facts) -> bool:
    """True if memory is what the tuning is for, or what the script lacks."""
    return facts.objective == "memory" or facts.out_of_memory


def unfit(traits: dict[str, str], compiled: bool, current: dict[str, object]) -> Skip | None:
    """Why the forward of the model's modules is not run by Python, None if it is."""
    if compiled or "compile" in traits or "compile" in current:
        return Skip("the model is compiled: its forward does not run as it is written")
    if "data_parallel" in traits:
        return Skip("DataParallel calls copies of the model, which are new in each step")
    return None


def unfit_root(module: object, hooks: Hooks) -> str | None:
    """The same of a root module in the user's process, as a reason."""
    compiled = getattr(module, "_compiled_call_impl", None) is not None
    compiled = compiled or hasattr(module, "_orig_mod")
    traits = {t: "" for t in ("compile", "data_parallel") if hooks.has_trait(t) is not None}
    found = unfit(traits, compiled, {})
    return None if found is None else found.reason
