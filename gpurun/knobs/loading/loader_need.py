"""What the loader knobs start from: the share of a step in which the script waits for data, and how
fast the training is with several numbers of workers, by turns of one process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpurun.knobs.api import Hooks, LoaderCall, Skip
from gpurun.records.facts import Facts, WorkerRate
from gpurun.records.messages.traits import keys_in, place

NOTICEABLE = 0.02
"""A data wait below this part of a step is not worth a trial: its end would gain less."""
NOTICEABLE_ON_CPU = 0.05
"""The same where a model keeps the cores busy that would load: a part of the wait stays."""
ALL_BUSY = 0.95
"""From this part of the cores' time on they are all busy."""


@dataclass(frozen=True)
class DataWait:
    """Milliseconds that a mean step of the baseline waits for data, and those that it works.

    `least`: a wait below this part of a step is not worth a trial.
    """

    wait_ms: float
    compute_ms: float
    least: float = NOTICEABLE

    @property
    def share(self) -> float:
        """The part of a step that is spent waiting."""
        return self.wait_ms / max(self.wait_ms + self.compute_ms, 1e-9)

    @property
    def too_short(self) -> Skip:
        """The reason where it is not noticeable."""
        if self.share <= NOTICEABLE:
            return Skip("the step does not wait for data")
        return Skip(f"the step waits for data for {self.share:.0%} of its time only")

    @property
    def noticeable(self) -> bool:
        """True if shortening it can gain anything that a trial would see."""
        return self.share > self.least


def data_wait(facts: Facts) -> DataWait | Skip:
    """The data wait of the baseline, or why there is none to speak of."""
    unfed = not_fed_from_host(facts)
    if unfed is not None:
        return unfed
    split, step = facts.result.split, facts.result.step_time_ms
    if split is None or split.data_wait_ms is None or step is None:
        return Skip("the wait for data was not measured")
    least = NOTICEABLE_ON_CPU if takes_cores_of_the_model(facts) else NOTICEABLE
    return DataWait(split.data_wait_ms, max(step.mean - split.data_wait_ms, 0.0), least)


def not_fed_from_host(facts: Facts) -> Skip | None:
    """Why no loader hands the training batches in host memory, None if one does."""
    if not facts.loaders_of_training():
        return Skip("no DataLoader feeds the training")
    if _trains_on_gpu_batches(facts):
        return Skip("the loader hands out batches that are on the GPU already")
    return None


def takes_cores_of_the_model(facts: Facts) -> bool:
    """True if the model computes on the CPU and leaves no core for loader workers."""
    return facts.device == "cpu" and _all_busy(facts) is not None


def no_core_left(facts: Facts) -> Skip | None:
    """Why workers that do more find no core to do it on, None if one is idle at times."""
    busy = _all_busy(facts) if workers_now(facts) else None
    return None if busy is None else Skip(f"the workers and the model keep all cores busy ({busy})")


def _all_busy(facts: Facts) -> str | None:
    """How many cores are busy, None if one is idle at times or it is not known."""
    host, cores = facts.result.host, facts.machine.cores
    if host is None or host.steady_cpu_percent is None:
        return None
    used = host.steady_cpu_percent + (host.others_cpu_percent or 0.0)
    if used < 100 * ALL_BUSY * cores:
        return None
    beside = ", with other programs" if host.others_cpu_percent else ""
    return f"{used / 100:.1f} of {cores:g}{beside}"


def pinned_batches(facts: Facts) -> dict[str, bool]:
    """The setting that pins the batches; none where the script or an earlier setting does so."""
    loaders = facts.loaders_of_training()
    pinned = facts.current.get("loader_pin_memory") or all(x.pin_memory for x in loaders)
    return {} if pinned else {"loader_pin_memory": True}


def _trains_on_gpu_batches(facts: Facts) -> bool:
    """True if a loader that feeds the training hands out batches that are on the GPU already."""
    return not set(keys_in(facts.traits.get("cuda_batches"))).isdisjoint(facts.training_loaders)


def hands_out_on_gpu(call: LoaderCall, hooks: Hooks) -> bool:
    """True if a loader that was built at the same place did so in this process.

    The loader of the call itself is not built yet, but the script may build it each epoch.
    """
    seen = keys_in(hooks.has_trait("cuda_batches"))
    return place(call.key) in map(place, seen)


def edit_loaders(
    hooks: Hooks,
    unfit: Callable[[LoaderCall], str | None],
    change: Callable[[LoaderCall], str],
) -> None:
    """Change the arguments of the loaders that may feed the training, where nothing speaks against.

    `unfit`: why a loader is left alone. `change` returns the outcome in words, "" to record none.
    """

    def edit(call: LoaderCall) -> None:
        if call.training is False:
            return
        reason = unfit(call)
        if reason is not None:
            hooks.skipped(f"{call.key}: {reason}")
        elif outcome := change(call):
            hooks.applied(f"{call.key}: {outcome}")

    hooks.before_loader(edit)


def without_workers(call: LoaderCall) -> str | None:
    """Why a setting of worker processes is nothing for a loader, None if it has some."""
    if call.subclass:
        return "a subclass of DataLoader"
    return None if call.arguments.get("num_workers") else "no workers"


def workers_now(facts: Facts) -> int:
    """Workers of the training loaders: as chosen by now, else as the script sets them."""
    chosen = facts.current.get("loader_workers")
    if isinstance(chosen, int):
        return chosen
    return max((loader.workers for loader in facts.loaders_of_training()), default=0)


WITHIN = 0.02
"""Rates this close are alike: a change that gains less is not kept either."""
ALIKE = 0.05
"""The same where no number had a second turn: disturbed turns of one process differ by so much."""


def worker_rates(turns: Mapping[int, Sequence[float]]) -> tuple[WorkerRate, ...]:
    """The rate of each number, fewest workers first, with the relative error of its mean.

    `turns`: rates by number. Their scatter is pooled over all numbers: they are of one process.
    """
    logs = {number: [math.log(rate) for rate in rates] for number, rates in sorted(turns.items())}
    means = {number: sum(seen) / len(seen) for number, seen in logs.items()}
    free = sum(len(seen) - 1 for seen in logs.values())
    squares = sum((x - means[number]) ** 2 for number, seen in logs.items() for x in seen)
    return tuple(
        WorkerRate(
            number, math.exp(means[number]), math.sqrt(squares / free / len(seen)) if free else None
        )
        for number, seen in logs.items()
    )


def enough_workers(rates: Sequence[WorkerRate]) -> int:
    """The smallest number whose rate is within the noise of the best one."""
    best = max(rates, key=lambda rate: rate.samples_per_second)

    def alike(rate: WorkerRate) -> bool:
        noise = ALIKE
        if rate.error is not None and best.error is not None:
            noise = max(WITHIN, math.hypot(rate.error, best.error))
        return math.log(best.samples_per_second / rate.samples_per_second) <= noise

    return next(rate.workers for rate in rates if alike(rate))
