"""Time, energy and money of a run; money only with a price in gpurun.toml."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from gpurun.arguments.gpurun_toml import ReportConfig
from gpurun.formatting.number_text import KWH, count, duration, energy_text, number
from gpurun.measure.training_clock import PlannedWork
from gpurun.report.page.page_blocks import Block, Paragraph, Section, Table
from gpurun.report.page.run_contents import Recording, RunContents
from gpurun.report.terminal_table import Column, Grid


def training_cost(contents: RunContents, config: ReportConfig) -> str | None:
    """What this training takes, in a sentence; None where its length is not known."""
    found = _found(contents, config)
    if found is None or found[1] is None:
        return None
    costs, work, devices = found
    return cost_sentence(costs, work, devices, config)


def cost_section(contents: RunContents, config: ReportConfig) -> Section | None:
    """None where no speed was measured, or neither price nor energy is known."""
    found = _found(contents, config)
    if found is None:
        return None
    costs, work, devices = found
    blocks: list[Block] = [Table(cost_grid(costs, config)), Paragraph(basis_sentence(work))]
    if work is None:
        blocks.insert(0, Paragraph(cost_sentence(costs, work, devices, config), strong=True))
    energy = ["energy"] if any(cost.joules is not None for cost in costs) else []
    words = ["time", *energy, *([] if config.price_per_hour is None else ["cost"])]
    title = f"{', '.join(words[:-1])} and {words[-1]}".capitalize()
    return Section(title, tuple(blocks))


def _found(
    contents: RunContents, config: ReportConfig
) -> tuple[list[Cost], PlannedWork | None, int] | None:
    """The cost of each side, the work that it is of, and the number of devices."""
    sides = [r for r in contents.recordings if r.label] or list(contents.recordings[-1:])
    paces = [pace for recording in sides if (pace := _pace(recording)) is not None]
    priced = config.price_per_hour is not None
    if not paces or not (priced or any(pace.joules_per_sample for pace in paces)):
        return None
    work = next((r.work for r in sides if r.work is not None), None)
    samples = SAMPLES if work is None else work.samples
    return [cost_of(pace, samples, config) for pace in paces], work, paces[0].devices


def _pace(recording: Recording) -> Pace | None:
    result = recording.result
    if result is None or not result.samples_per_second:
        return None
    return Pace(
        recording.label or "the run",
        result.samples_per_second,
        result.joules_per_sample,
        max(len(result.devices), 1),
    )


SAMPLES = 1_000
"""The amount of work that is priced where the length of the training is not known."""
HOUR = 3600.0


@dataclass(frozen=True)
class Pace:
    """The measured speed of a launch. `devices`: those that are paid for, at least 1."""

    name: str
    samples_per_second: float
    joules_per_sample: float | None
    devices: int = 1


@dataclass(frozen=True)
class Cost:
    """The cost of some samples. None: not measured, or no price is known."""

    name: str
    seconds: float
    money: float | None
    joules: float | None
    grams_co2: float | None


def cost_of(pace: Pace, samples: int, config: ReportConfig) -> Cost:
    """The time, price, energy and CO₂ of that many samples at the measured pace."""
    seconds = samples / pace.samples_per_second
    price, intensity = config.price_per_hour, config.grams_co2_per_kwh
    energy = None if pace.joules_per_sample is None else samples * pace.joules_per_sample
    return Cost(
        pace.name,
        seconds,
        money=None if price is None else seconds / HOUR * price * pace.devices,
        joules=energy,
        grams_co2=None if energy is None or intensity is None else energy / KWH * intensity,
    )


def cost_sentence(
    costs: Sequence[Cost], work: PlannedWork | None, devices: int, config: ReportConfig
) -> str:
    """The last cost beside the first: "This training: 31 min instead of 2 h; ..."."""
    first, last = costs[0], costs[-1]
    what = f"{SAMPLES:,} samples" if work is None else "This training"
    told = [_instead(first.seconds, last.seconds, duration)]
    if first.money is not None and last.money is not None and config.price_per_hour is not None:
        rate = f"at {number(config.price_per_hour)} {config.currency} an hour for each device"
        paid = f", {count(devices, 'device')}" if devices > 1 else ""
        told.append(
            f"{rate}{paid}: {_instead(first.money, last.money, partial(money, config.currency))}"
        )
    if first.joules is not None and last.joules is not None:
        both = max(first.joules, last.joules)
        told.append(_instead(first.joules, last.joules, partial(energy_text, beside=both)))
    if first.grams_co2 is not None and last.grams_co2 is not None:
        told.append(f"{_instead(first.grams_co2, last.grams_co2, mass)} of CO₂")
    return f"{what}: {'; '.join(told)}."


def basis_sentence(work: PlannedWork | None) -> str:
    """What the figures rest on."""
    pace = "Computed from the measured pace, without start, evaluation and checkpoints."
    if work is None:
        return f"The records do not show how long the training is. {pace}"
    size = f"{count(work.epochs, 'epoch')} ({work.source}) of {work.samples_per_epoch:,} samples"
    return f"{size}. {pace}"


def cost_grid(costs: Sequence[Cost], config: ReportConfig) -> Grid:
    """A row for each launch."""
    columns = (
        Column(""),
        Column("time", right=True),
        Column("money", right=True),
        Column("energy", right=True),
        Column("CO₂", right=True),
    )
    most = max((cost.joules or 0.0 for cost in costs), default=0.0)
    rows = tuple(
        (
            cost.name,
            duration(cost.seconds),
            "" if cost.money is None else money(config.currency, cost.money),
            "" if cost.joules is None else energy_text(cost.joules, most),
            "" if cost.grams_co2 is None else mass(cost.grams_co2),
        )
        for cost in costs
    )
    return Grid(columns, rows).without_empty_columns()


def money(currency: str, amount: float) -> str:
    """An amount with two decimals, or more if it is small: "1.45 $"."""
    return f"{amount:,.2f} {currency}" if amount >= 1 else f"{number(amount)} {currency}"


def mass(grams: float) -> str:
    """Mass: "420 g", "1.20 kg"."""
    return f"{number(grams / 1000)} kg" if grams >= 1000 else f"{number(grams)} g"


def _instead(before: float, after: float, show: Callable[[float], str]) -> str:
    return show(after) if before == after else f"{show(after)} instead of {show(before)}"
