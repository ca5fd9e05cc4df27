"""Another batch size, with the learning rate that goes with it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from gpurun.knobs.api import Effect, Hooks, Knob, LoaderCall, Skip
from gpurun.knobs.script_argument import with_flag
from gpurun.records.facts import Facts
from gpurun.records.finding import FindingType

GAIN = 1.03
"""Twice the batch must gain this much throughput to be doubled again."""
FIRST_FACTORS = (4, 2)
"""The larger first: a device that is not busy gains by both, and each is compiled anew."""
MEMORY_SHARE = 0.9
"""Ten per cent of the memory stay free."""
STEPS_AN_EPOCH = 4
"""A batch never makes an epoch shorter than this."""
LIBRARIES_BYTES = 400_000_000
"""About what a process with torch takes before it has a model."""
ADAPTIVE = re.compile(r"adam|lamb|lion|rmsprop|adagrad|adadelta|adafactor", re.IGNORECASE)
LEARNING_RATE = re.compile(r"(\b|_)lr(\b|_)|learning_?rate", re.IGNORECASE)


class BatchSize(Knob):
    """More samples a step. A value is `{"batch_size": n, "from": m, "via": v, "learning_rate": r}`.

    `v` is the script's own flag ("--batch-size") or "loader". `r` is the rule by which the learning
    rate follows n / m: "linear" (SGD), "sqrt" (Adam kinds) or "keep".

    Helps when the device is not busy: larger kernels, fewer launches, fewer steps. The largest
    batch that fits is rarely the fastest: it is doubled only while samples/s grow.

    Risks: it changes training (fewer, larger steps; schedules counted in steps run longer). A
    loader with another batch size disagrees with what else the script does with the number: a shape
    then fails in the trial, a divisor does not. So the script's own flag comes first, and the lines
    are named beside the gain. A rate that the script may compute from its batch size, or loads from
    a checkpoint, is not scaled again.
    """

    name = "batch_size"
    answers = (FindingType.SMALL_BATCH,)
    effect = Effect.TRAINING
    order = 90
    changes_steps = True

    def candidates(self, facts: Facts) -> Sequence[dict[str, Any]] | Skip:
        """Four times and twice the batch, where they fit."""
        present = _present(facts)
        if isinstance(present, Skip):
            return present
        size, via = present
        sizes = [size * factor for factor in FIRST_FACTORS if _fits(facts, size, size * factor)]
        if not sizes:
            return Skip(f"batch {2 * size} would not fit the data set or the memory")
        rule = _rule(facts)
        return [{"batch_size": n, "from": size, "via": via, "learning_rate": rule} for n in sizes]

    def refine(self, facts: Facts, value: dict[str, Any], gain: float) -> dict[str, Any] | None:
        """Twice as large while that gains; `gain` is over the best value tried before."""
        base, size = value["from"], value["batch_size"]
        if size < max(FIRST_FACTORS) * base or gain <= GAIN or not _fits(facts, base, 2 * size):
            return None
        return {**value, "batch_size": 2 * size}

    def arguments(self, value: dict[str, Any], argv: tuple[str, ...]) -> tuple[str, ...]:
        """The command line with the script's own flag set to the batch size."""
        if value["via"] == "loader":
            return argv
        return with_flag(argv, value["via"], str(value["batch_size"]), str(value["from"]))

    def apply(self, value: dict[str, Any], hooks: Hooks) -> None:
        """Resize the training loaders unless the flag does, and scale the learning rates once."""
        if value["via"] == "loader":
            hooks.before_loader(lambda call: _resize(call, value, hooks))
        else:
            hooks.applied(f"{value['via']} {value['batch_size']}")
        factor = learning_rate_factor(value)
        if factor == 1.0:
            return
        scaled: dict[int, Any] = {}

        def scale(optimizer: Any) -> None:
            for table in (*optimizer.param_groups, optimizer.defaults):
                _scale_once(table, factor, scaled)
            hooks.applied(f"learning rate of {type(optimizer).__name__} × {factor:.4g}")

        hooks.after_optimizer(scale)


def learning_rate_factor(value: dict[str, Any]) -> float:
    """By how much the rule of a value changes the learning rate."""
    ratio = float(value["batch_size"] / value["from"])
    rules = {"linear": ratio, "sqrt": math.sqrt(ratio), "keep": 1.0}
    return rules[value["learning_rate"]]


def most_for_data(facts: Facts) -> float:
    """The largest batch with which an epoch keeps its least steps; infinite if that is unknown."""
    lengths = [x.dataset_length for x in facts.loaders_of_training() if x.dataset_length]
    steps = STEPS_AN_EPOCH * max(1, facts.result.ranks)
    return min(lengths) / steps if lengths else math.inf


def side_effects(facts: Facts, value: dict[str, Any]) -> tuple[str, ...]:
    """Other changes of the training under this value, in words for the report."""
    base, size, factor = value["from"], value["batch_size"], learning_rate_factor(value)
    effects = []
    if factor == 1.0:
        effects.append("learning rate as the script sets it")
    else:
        effects.append(f"learning rate × {factor:.4g} ({value['learning_rate']} rule)")
    lengths = [x.length for x in facts.loaders_of_training() if x.length is not None]
    if lengths:
        fewer = max(1, round(max(lengths) * base / size))
        effects.append(f"steps an epoch: {fewer} instead of {max(lengths)}")
    effects.append(
        f"schedules and intervals counted in steps last {size / base:g}× as many samples"
    )
    if "scheduler_total_steps" in facts.traits:
        where = facts.traits["scheduler_total_steps"]
        effects.append(f"a schedule with a fixed number of steps ({where}) may not run to its end")
    also = "the script also reads its batch size in"
    if value["via"] == "loader":
        also = f"{base} stays where the script has its batch size besides the loader"
        if facts.batch_uses is None:
            effects.append(f"{also}; where that is was not found")
    effects += [f"{also}: {x.strip()}" for x in facts.batch_uses or ()]
    return tuple(effects)


def _present(facts: Facts) -> tuple[int, str] | Skip:
    """The batch size of the script as it is, and by what it can be changed."""
    if facts.batch_flag is not None:
        return facts.batch_flag.value, facts.batch_flag.flag
    loaders = facts.loaders_of_training()
    sizes = {x.batch_size for x in loaders}
    size = next(iter(sizes), None)
    if len(sizes) != 1 or size is None or any(x.custom_batch_sampler for x in loaders):
        return Skip("there is no flag and no plain DataLoader that sets the batch size")
    if any(x.subclass for x in loaders):
        return Skip("the loader is a subclass of DataLoader with rules of its own")
    return size, "loader"


def _fits(facts: Facts, base: int, size: int) -> bool:
    """True if a batch may fit the data set and the memory; an unknown figure forbids nothing."""
    if size > most_for_data(facts):
        return False
    # weights, gradients and two moments stay as they are
    fixed = 4 * sum(root.parameter_bytes for root in facts.roots)
    if facts.device == "cuda":
        peak, memory = facts.result.peak_memory_bytes, facts.machine.gpu_memory_bytes
    else:
        peak = facts.result.host.peak_rss_bytes if facts.result.host else None
        memory, fixed = facts.machine.memory_bytes, fixed + LIBRARIES_BYTES
    if peak is None or memory is None:
        return True
    return fixed + max(0, peak - fixed) * size / base <= MEMORY_SHARE * memory


def _rule(facts: Facts) -> str:
    """The learning rate's rule; none where the script has (or may have) one of its own."""
    if facts.batch_uses is None or any(LEARNING_RATE.search(x) for x in facts.batch_uses):
        return "keep"
    names = [optimizer.class_name for optimizer in facts.optimizers]
    if any(ADAPTIVE.search(name) for name in names):
        return "sqrt"
    return "linear" if any("SGD" in name.upper() for name in names) else "keep"


def _resize(call: LoaderCall, value: dict[str, Any], hooks: Hooks) -> None:
    if call.training is False:
        return
    present = call.arguments.get("batch_size", 1)
    if call.training is None:
        hooks.skipped(f"{call.key}: gpurun does not know whether it feeds the training")
    elif call.subclass or call.arguments.get("batch_sampler") is not None:
        hooks.skipped(f"{call.key}: a subclass or a batch sampler sets its batches")
    elif present != value["from"]:
        hooks.skipped(f"{call.key}: its batch size is {present}, not {value['from']}")
    else:
        call.arguments["batch_size"] = value["batch_size"]
        hooks.applied(f"{call.key}: batch size {value['batch_size']}")


def _scale_once(table: dict[str, Any], factor: float, scaled: dict[int, Any]) -> None:
    """Scale the rate of a group; wrappers of optimizers (SAM) share groups with what they wrap."""
    rate = table.get("lr")
    if rate is None or (id(table) in scaled and bool(scaled[id(table)] == rate)):
        return
    table["lr"] = scaled[id(table)] = rate * factor
