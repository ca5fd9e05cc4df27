"""From a trial's record to the facts on which knobs propose."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path
from typing import TypeGuard

from gpurun.arguments.options import Options, TargetKind
from gpurun.measure.run_events import ProcessLog
from gpurun.measure.step_table import UNKNOWN
from gpurun.measure.training_clock import RecordedClock, planned_work, step_clock, training_loaders
from gpurun.records.events import LoaderEvent, RootEvent
from gpurun.records.facts import BatchFlag, Facts, Machine
from gpurun.records.result import RunResult

BATCH_NAME = re.compile(r"(^|[-_])(b|bs|batch)([-_]?size)?$|batch[-_]?size", re.IGNORECASE)
READ_FORMS = (ast.Name, ast.Attribute, ast.Subscript)
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


def _planned_steps(log: ProcessLog, clock: RecordedClock) -> int | None:
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


# -- other readers of the batch size ---------------------------------------------------------------


def batch_size_uses(script: Path, expression: str) -> tuple[str, ...] | None:
    """Lines of `script` that read the batch-size `expression` outside of DataLoader calls.

    Where the expression is a name, what was assigned to it counts too (`bs = args.batch_size`). An
    attribute counts under any object (`cfg.batch` here, `config.batch` there). Of a number written
    out each line with the same number counts: it may be the batch size again. None if it cannot be
    told: the source is unreadable, or the name is handed in from elsewhere (a parameter, or nothing
    that this script assigns).
    """
    try:
        text = script.read_text(encoding="utf-8")
        tree = ast.parse(text)
        wanted = ast.parse(expression, mode="eval").body
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
    if isinstance(wanted, ast.Name) and _handed_in(tree, wanted.id):
        return None
    names, passed_on = _origins(tree, wanted)
    attributes = {w.attr for w in _attributes(names, tree)}
    inside = passed_on | {
        id(node)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and _called(call).endswith("DataLoader")
        for node in ast.walk(call)
    }
    lines = text.splitlines()
    found = {
        node.lineno
        for node in ast.walk(tree)
        if _is_read(node)
        and id(node) not in inside
        and (ast.dump(node) in names or getattr(node, "attr", None) in attributes)
    }
    return tuple(f"{script.name}:{n}: {lines[n - 1].strip()[:80]}" for n in sorted(found))


def _is_read(node: ast.AST) -> TypeGuard[ast.expr]:
    loaded = isinstance(node, READ_FORMS) and isinstance(node.ctx, ast.Load)
    return loaded or isinstance(node, ast.Constant)


def _handed_in(tree: ast.AST, name: str) -> bool:
    """True if a name is some function's parameter, or is never assigned in the script."""
    parameters = {
        argument.arg
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    }
    assigned = {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    return name in parameters or name not in assigned


def _attributes(names: set[str], tree: ast.AST) -> list[ast.Attribute]:
    """The attributes among the expressions of the number."""
    return [n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and ast.dump(n) in names]


def _origins(tree: ast.AST, wanted: ast.expr) -> tuple[set[str], set[int]]:
    """All expressions that hold the number, and the nodes that merely hand it on."""
    names, passed_on = {ast.dump(wanted)}, set()
    values = {
        ast.dump(ast.Name(target.id, ast.Load())): node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    current = ast.dump(wanted)
    while isinstance(value := values.pop(current, None), READ_FORMS):
        passed_on.add(id(value))
        current = ast.dump(value)
        names.add(current)
    return names, passed_on


def _called(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""
