"""The summary of a run: a few compact lines; unmeasured figures are left out."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from gpurun.formatting.number_text import (
    byte_size,
    count,
    duration,
    energy_text,
    flops,
    joules,
    milliseconds,
    number,
    times,
)
from gpurun.formatting.one_line import one_line
from gpurun.records.result import ENDED_WELL, RunResult, StepSplit
from gpurun.records.tuning import SavedSettings
from gpurun.report.terminal_output import PREFIX, VERBATIM, Line, Span, write_lines
from gpurun.rundir import shown_path

_BAR_WIDTH = 30
_NOTES_SHOWN = 3
LEAST_READ_BYTES = 1 << 20
"""Less than this is python's own."""
_SEPARATOR: Span = (", ", "")

_PARTS = (
    ("data_wait_ms", "data wait", "D", "red"),
    ("host_to_device_copy_ms", "copy", "C", "yellow"),
    ("forward_ms", "forward", "F", "green"),
    ("backward_ms", "backward", "B", "cyan"),
    ("optimizer_ms", "optimizer", "O", "magenta"),
    ("rest_ms", "rest", "·", "bright_black"),
)
"""Field of `StepSplit`, its name, its letter in the bar and its colour."""

UTILIZATION_SOURCES = {
    "gpm_sm_activity": "SM activity",
    "dcgm_sm_activity": "SM activity",
    "nvml": "NVML utilisation",
}
"""What `gpu_utilization_source` of a result is called."""


def print_summary(result: RunResult, run_dir: Path) -> None:
    """Write the summary of a run and the place of its record to stderr."""
    write_lines(summary_lines(result, run_dir))


def summary_lines(result: RunResult, run_dir: Path) -> list[Line]:
    """The lines of the summary; each begins with "gpurun: "."""
    headline = _headline(result)
    bodies: list[Line] = [headline]
    if result.split is not None and result.step_time_ms is not None:
        bodies.append(_split_line(result.split))
    bodies += [line for line in (_resources(result), _knobs(result)) if line]
    bodies += [line for line in (_attempts(result),) if line]
    if result.topology is not None:
        bodies += [[(f"topology: {one_line(text)}", "")] for text in result.topology.findings]
    bodies += [[(f"hook switched off: {one_line(e)}", "yellow")] for e in result.hook_errors]
    told = "".join(text for text, _ in headline)
    notes = [note for note in result.notes if not told.startswith(note)]
    bodies += [[(f"note: {one_line(note)}", "")] for note in notes[:_NOTES_SHOWN]]
    hidden = len(notes) - _NOTES_SHOWN
    if hidden > 0:
        bodies.append([(f"note: {count(hidden, 'more note')} in the record", "")])
    bodies.append([("record: ", "dim"), (_short_path(run_dir), VERBATIM)])
    return [[(PREFIX, "bold cyan"), *body] for body in bodies]


def _headline(result: RunResult) -> Line:
    if result.clock is None or result.steps == 0:
        text = f"no training was seen; {_ending(result)} after {duration(result.wall_seconds)}"
        return [(text, "")]
    parts = [*_throughput(result), *_step_times(result)]
    if not parts:
        parts.append([(f"{count(result.steps, 'step')} seen, too few to measure", "")])
    if result.epoch_seconds is not None:
        parts.append([(f"epoch {duration(result.epoch_seconds)}", "")])
    if result.measured_steps:
        parts.append([(count(result.measured_steps, "measured step"), "dim")])
    if result.ranks > 1:
        parts.append([(f"{result.ranks} ranks", "")])
    if result.status not in ENDED_WELL:
        parts.append([(_ending(result), "bold red")])
    return _joined(parts)


def _ending(result: RunResult) -> str:
    words = {"completed": "the script ended", "stopped": "stopped", "refused": "refused by --ddp"}
    word = words.get(result.status, f"the script {result.status}")
    if result.status == "timeout":
        word = "ended from outside at its time limit"
    if result.status == "failed" and result.exit_code is not None:
        word += f" with exit code {result.exit_code}"
    return word


def _throughput(result: RunResult) -> list[Line]:
    parts: list[Line] = []
    if result.samples_per_second is not None:
        parts.append([(f"{number(result.samples_per_second)} samples/s", "bold")])
    if result.tokens_per_second:  # None and 0 alike: no tokens were seen
        parts.append([(f"{number(result.tokens_per_second)} tokens/s", "bold")])
    return parts


def _step_times(result: RunResult) -> list[Line]:
    times = result.step_time_ms
    if times is None:
        return []
    name = "latency" if result.clock == "forward" else "step"
    spread = f"p50 {number(times.p50)}, p95 {number(times.p95)}, p99 {number(times.p99)}"
    return [[(f"{name} {milliseconds(times.mean)} ({spread})", "")]]


def _split_line(split: StepSplit) -> Line:
    measured = [
        (name, letter, colour, value)
        for field, name, letter, colour in _PARTS
        if (value := getattr(split, field)) is not None
    ]
    total = sum(value for *_, value in measured)
    if total <= 0:
        return []
    widths = _bar_widths([value / total for *_, value in measured])
    line: list[Span] = [("[", "dim")]
    line += [(m[1] * width, f"black on {m[2]}") for m, width in zip(measured, widths, strict=True)]
    line.append(("]", "dim"))
    for name, _, colour, value in measured:
        line += [("  ", ""), (name, colour), (f" {_share(value / total)}", "")]
    return line


def _share(fraction: float) -> str:
    """Whole percents, except where that would read as nothing."""
    return f"{fraction * 100:.0f} %" if fraction >= 0.01 or fraction == 0 else "< 1 %"


def _bar_widths(shares: list[float]) -> list[int]:
    """Whole characters for each share, adding up to the bar (largest remainders get the rest)."""
    exact = [share * _BAR_WIDTH for share in shares]
    widths = [int(value) for value in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: widths[i] - exact[i])
    for i in by_remainder[: _BAR_WIDTH - sum(widths)]:
        widths[i] += 1
    return widths


def _resources(result: RunResult) -> Line:
    parts: list[str] = []
    if result.peak_memory_bytes is not None and result.devices:
        # without a device the peak is the process's own, which the host part shows
        parts.append(f"device memory {byte_size(result.peak_memory_bytes)}{_reserved(result)}")
    if result.allocator_retries:
        parts.append(f"allocator retries {result.allocator_retries:,}")
    parts += _gpu_use(result)
    parts += _compute(result)
    parts += _host_use(result)
    parts += _storage(result)
    if result.energy_joules is not None:
        each = result.joules_per_sample
        per_sample = f" ({joules(each)}/sample, {number(1 / each)} samples/J)" if each else ""
        parts.append(f"energy {energy_text(result.energy_joules)}{per_sample}")
    return _joined([[(part, "")] for part in parts])


def _reserved(result: RunResult) -> str:
    if result.peak_reserved_bytes is None:
        return ""
    share = result.memory_share
    of = "" if share is None else f", {_share(share)} of the device"
    return f" ({byte_size(result.peak_reserved_bytes)} reserved{of})"


def _gpu_use(result: RunResult) -> list[str]:
    parts: list[str] = []
    if result.gpu_utilization_percent is not None:
        source = result.gpu_utilization_source
        told = f" ({UTILIZATION_SOURCES.get(source, source)})" if source else ""
        parts.append(f"GPU {result.gpu_utilization_percent:.0f} %{told}")
    watts = [d.power_watts for d in result.devices if d.power_watts is not None]
    if watts and len(watts) == len(result.devices):
        parts.append(f"{sum(watts):,.0f} W")
    throttled = sorted({reason for d in result.devices for reason in d.throttle_reasons})
    if throttled:
        parts.append(f"throttled by {' and '.join(throttled)}")
    if any(d.foreign_processes for d in result.devices):
        parts.append("other processes were on the GPU")
    return parts


def _compute(result: RunResult) -> list[str]:
    if result.flops_per_step is None or result.flops_per_second is None:
        return []
    rate = f"{flops(result.flops_per_second)}/s"
    used = "" if result.mfu is None else f", MFU {result.mfu * 100:.1f} %"
    return [f"{flops(result.flops_per_step)} a step ({rate}{used})"]


def _host_use(result: RunResult) -> list[str]:
    host = result.host
    if host is None:
        return []
    parts: list[str] = []
    if host.cpu_percent is not None:
        cores = host.cores_available
        of = "cores" if cores is None else f"of {count(cores, 'core')}"
        parts.append(f"CPU {host.cpu_percent / 100:.2f} {of}")
    if host.peak_rss_bytes is not None:
        share = None if result.devices else result.memory_share
        of = "" if share is None else f" ({_share(share)} of the machine's)"
        parts.append(f"host memory {byte_size(host.peak_rss_bytes)}{of}")
    return parts


def _storage(result: RunResult) -> list[str]:
    """Reading from storage and saving, where there was any."""
    parts: list[str] = []
    read = None if result.host is None else result.host.disk_read_bytes
    if read is not None and read >= LEAST_READ_BYTES:
        parts.append(f"read from disk {byte_size(read)}")
    if result.checkpoint_saves and result.checkpoint_seconds is not None:
        saves = count(result.checkpoint_saves, "save")
        parts.append(f"{duration(result.checkpoint_seconds)} in {saves} (torch.save)")
    return parts


def _knobs(result: RunResult) -> Line:
    parts: list[Line] = []
    for outcome in result.knobs:
        detail = f" ({one_line(outcome.detail)})" if outcome.detail else ""
        style = {"applied": "green", "failed": "red"}.get(outcome.outcome, "yellow")
        parts.append([(outcome.outcome, style), (f" {outcome.knob}{detail}", "")])
    return [("knobs: ", ""), *_joined(parts)] if parts else []


def _attempts(result: RunResult) -> Line:
    """The number of starts of the ranks, if more than one, and the causes of their ends."""
    if len(result.attempts) < 2:
        return []
    causes = [
        f"rank {a.failures[0].rank} by {a.failures[0].how}" if a.failures else a.detail or a.outcome
        for a in result.attempts[:-1]
    ]
    text = f"the ranks were started {len(result.attempts)} times; ended before: {'; '.join(causes)}"
    return [(one_line(text), "yellow")]


def _joined(parts: Iterable[Line]) -> Line:
    line: list[Span] = []
    for part in parts:
        line += [_SEPARATOR, *part] if line else part
    return line


def _short_path(path: Path) -> str:
    """The path from the current folder, where it lies below it."""
    relative = shown_path(path)
    return str(path) if relative.startswith("..") else relative


def promise_sentence(saved: SavedSettings, result: RunResult) -> str | None:
    """The speed of a run under tuned settings over the script as it was while tuning.

    None where no speedup was promised, or the run has no throughput. Steps count where samples
    cannot be counted, as they did in the tuning.
    """
    base, rate = saved.baseline_samples_per_second, result.samples_per_second
    if rate is None and result.step_time_ms is not None:
        rate = 1000.0 / result.step_time_ms.mean
    if saved.speedup is None or not base or rate is None:
        return None
    if result.epoch_pace is not None:
        first, later = result.epoch_pace.first_ms, result.epoch_pace.later_ms
        return (
            f"promised {times(saved.speedup)}: not compared with this run, whose steps took "
            f"{milliseconds(first)} in the first epoch and {milliseconds(later)} in later ones"
        )
    return (
        f"promised {times(saved.speedup)}, running {times(rate / base)} "
        f"({number(rate)} samples/s against {number(base)} of the script as it is while tuning)"
    )


def suspicion_sentence(result: RunResult) -> str | None:
    """What to try where the script failed under settings; None if it did not, or none applied."""
    applied = [outcome.knob for outcome in result.knobs if outcome.outcome == "applied"]
    if result.status != "failed" or not applied:
        return None
    return (
        f"the script failed while {', '.join(applied)} applied: --without {applied[0]} tries it "
        "without, gpurun blame tells whether a setting is to blame"
    )
