"""From a trial's record to the facts on which knobs propose."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from gpurun.arguments.options import Options, TargetKind
from gpurun.measure.run_events import ProcessLog
from gpurun.measure.step_table import UNKNOWN
from gpurun.measure.training_clock import StepClock, planned_work, step_clock, training_loaders
from gpurun.records.events import LoaderEvent, RootEvent
from gpurun.records.facts import BatchFlag, Facts, Machine
from gpurun.records.result import RunResult
from gpurun.tuner.batch_size_uses import batch_size_uses

BATCH_NAME = re.compile(r"(^|[-_])(b|bs|batch)([-_]?size)?$|batch[-_]?size", re.IGNORECASE)
NOT_TRAINING = re.compile(r"eval|test|val", re.IGNORECASE)


def gather_facts(options: Options, machine: Machine, result: RunResult, log: ProcessLog) -> Facts:
    """The facts of a script from its first trial."""
    clock = step_clock(log)
    loaders = () if clock is None else training_loaders(log, clock)
    roots = log.roots
    batch = _batch_size(log, loaders, result)
    return Facts(
        device="cuda" if log.on_gpu else "cpu",
        machine=_as_used(machine, roots),
        result=result,
        loaders=log.loaders,
        training_loaders=tuple(x.key for x in loaders),
        optimizers=log.optimizers,
        roots=roots,
        traits={t.trait: t.detail for t in log.traits},
        batch_flag=None if batch is None else _batch_flag(log, loaders, batch),
        batch_uses=_batch_uses(options, loaders),
        threads=None if log.torch is None else log.torch.threads,
        argv=options.target.args,
        current={},
        planned_steps=None if clock is None else _planned_steps(log, clock),
    )


def _planned_steps(log: ProcessLog, clock: StepClock) -> int | None:
    work = planned_work(log, clock, ranks=1)
    if work is None:
        return None
    batches = [count for count in clock.batches if count != UNKNOWN]
    return round(work.batches * len(batches) / sum(batches)) if sum(batches) else None


def _as_used(machine: Machine, roots: tuple[RootEvent, ...]) -> Machine:
    """The machine with the GPUs that the model is on: NVML may not answer, or tell of others."""
    capabilities = [r.compute_capability for r in roots if r.compute_capability is not None]
    memories = [r.device_memory_bytes for r in roots if r.device_memory_bytes is not None]
    return replace(
        machine,
        compute_capability=min(capabilities, default=machine.compute_capability),
        gpu_memory_bytes=min(memories, default=machine.gpu_memory_bytes),
    )


def steps_per_epoch(log: ProcessLog) -> int | None:
    """Batches in a pass over the loader that feeds the training, None if there is none."""
    clock = step_clock(log)
    loaders = () if clock is None else training_loaders(log, clock)
    return loaders[0].length if loaders else None


def reload_rate(log: ProcessLog) -> float | None:
    """Samples a second of the quickest pass in which audited samples were loaded again."""
    return max((rate for event in log.samples for rate in event.again_rates), default=None)


def _batch_size(log: ProcessLog, loaders: tuple[LoaderEvent, ...], result: RunResult) -> int | None:
    for loader in loaders:
        if loader.batch_size:
            return loader.batch_size
    shapes = [r.input_shape for r in log.roots if r.input_shape]
    return shapes[0][0] if shapes else None


def _batch_flag(log: ProcessLog, loaders: tuple[LoaderEvent, ...], batch: int) -> BatchFlag | None:
    """The option of the script's parser that holds the batch size, preferring the one it feeds."""
    sources = {x.batch_size_argument for x in loaders if x.batch_size_argument}
    found: list[tuple[bool, str]] = []
    for event in log.arguments:
        for option in event.options:
            names = [*option["flags"], option["dest"]]
            if option["value"] != batch or isinstance(option["value"], bool):
                continue
            fed = any(s.endswith(f".{option['dest']}") for s in sources)
            named = any(BATCH_NAME.search(n) for n in names)
            if fed or (named and not any(NOT_TRAINING.search(n) for n in names)):
                flag = max(option["flags"], key=len)
                found.append((fed, flag))
    if not found:
        return None
    found.sort(key=lambda item: not item[0])
    return BatchFlag(flag=found[0][1], value=batch)


def _batch_uses(options: Options, loaders: tuple[LoaderEvent, ...]) -> tuple[str, ...] | None:
    """Other readers of the batch size; None where a loader is built outside of the script."""
    if options.target.kind is not TargetKind.SCRIPT or not loaders:
        return None
    script = Path(options.target.path)
    found: list[str] = []
    for loader in loaders:
        uses = None
        if loader.batch_size_argument is not None and loader.in_script:
            uses = batch_size_uses(script, loader.batch_size_argument)
        if uses is None:
            return None
        found += uses
    return tuple(dict.fromkeys(found))
