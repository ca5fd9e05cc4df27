"""The record of a benchmark in plain lines."""

from __future__ import annotations

from gpurun.formatting.number_text import byte_size, count, joules, milliseconds, number, percent
from gpurun.formatting.one_line import one_line
from gpurun.measure.optional_figures import known
from gpurun.records.bench.benchmark import BenchmarkRecord


def record_lines(record: BenchmarkRecord) -> list[str]:
    """The figures, and the spread of the launches."""
    launches = [launch for launch in record.launches if launch.error is None]
    parts = []
    rates = known(launch.samples_per_second for launch in launches)
    if record.samples_per_second is not None:
        span = f" ({number(min(rates))} to {number(max(rates))})" if len(rates) > 1 else ""
        parts.append(f"{number(record.samples_per_second)} samples/s{span}")
    if record.step_time_ms is not None:
        times = record.step_time_ms
        parts.append(f"step {milliseconds(times.mean)} (p95 {milliseconds(times.p95)})")
    if record.gpu_utilization_percent is not None:
        parts.append(f"GPU {percent(record.gpu_utilization_percent / 100)}")
    if record.peak_memory_bytes is not None:
        parts.append(f"peak memory {byte_size(record.peak_memory_bytes)}")
    if record.joules_per_sample is not None:
        parts.append(f"{joules(record.joules_per_sample)} a sample")
    lines = []
    if parts:
        times_measured = f"measured {count(len(launches), 'time')}"
        lines.append(f"{record.benchmark}: {', '.join(parts)}, {times_measured}")
    if record.error is not None:
        lines.append(f"the benchmark {record.benchmark} failed: {one_line(record.error)}")
        if record.launches and record.launches[-1].run_dir is not None:
            lines.append(f"its whole output is in {record.launches[-1].run_dir}/output.log")
    return lines
