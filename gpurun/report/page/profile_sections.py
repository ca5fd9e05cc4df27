"""Everything that a profile measured, a section each: for the page, Markdown and the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpurun.formatting.kernel_names import short_kernel_name
from gpurun.formatting.number_text import byte_size, factor, if_known, milliseconds, number, percent
from gpurun.records.diagnosis import DiagnosisReport
from gpurun.records.finding import Location
from gpurun.records.messages.profile_events import FunctionSamples, MemoryTraceEvent
from gpurun.records.profile_figures import IdleTime, KernelCounters, ProfileFigures, StepPicture
from gpurun.replay.spent_time import IDLE
from gpurun.report.findings_text import place
from gpurun.report.page.charts import Span, SpanChart
from gpurun.report.page.page_blocks import Block, Paragraph, Picture, Section, Table
from gpurun.report.terminal_table import Column, Grid

TITLE = "Nsight Compute, percent of the device's peak (n/a: not measured)"
NOT_MEASURED = "n/a"
_COLUMNS = (
    "time", "launches", "SM", "DRAM", "occupancy", "warps", "registers", "shared memory", "grid",
    "block",
)  # fmt: skip


def counter_grid(kernels: Sequence[KernelCounters]) -> Grid:
    """The kernels in their order."""
    columns = (*(Column(name, right=True) for name in _COLUMNS), Column("kernel"))
    return Grid(columns, tuple(map(_row, kernels)))


def _row(kernel: KernelCounters) -> tuple[str, ...]:
    cells = (
        None if kernel.mean_us is None else f"{number(kernel.mean_us)} µs",
        str(kernel.launches),
        _percent(kernel.sm_percent),
        _percent(kernel.dram_percent),
        _percent(kernel.occupancy_percent),
        _percent(kernel.warp_efficiency_percent),
        None if kernel.registers is None else str(kernel.registers),
        None if kernel.shared_memory_bytes is None else byte_size(kernel.shared_memory_bytes),
        _dimensions(kernel.grid),
        _dimensions(kernel.block),
        short_kernel_name(kernel.name),
    )
    return tuple(NOT_MEASURED if cell is None else cell for cell in cells)


def _percent(value: float | None) -> str | None:
    return None if value is None else percent(value / 100)


def _dimensions(size: tuple[int, int, int] | None) -> str | None:
    """Trailing ones say nothing: 64, 16×8, 16×1×8."""
    if size is None:
        return None
    kept = [*size]
    while len(kept) > 1 and kept[-1] == 1:
        kept.pop()
    return "×".join(map(str, kept))


COLOURS = (
    "forward", "backward", "data", "optimizer", "waits", "launches", "products", "other",
)  # fmt: skip
"""What spans of the picture are, in the order of the page's colours; all else has the last one."""
ON_CORES = {True: "yes", False: "no", None: ""}


def profile_sections(report: DiagnosisReport, most: int | None = None) -> list[Section]:
    """Every section that the profile has data for. `most`: rows of a table; None: all."""
    found = [
        *picture_section([("", report.step_picture)]),
        *_what_if(report, most),
        *_of_device(report.figures or ProfileFigures(), most),
        *_host_functions(report, most),
        *_memory(report, most),
    ]
    return [section for section in found if section.blocks]


def picture_section(steps: Sequence[tuple[str, StepPicture | None]]) -> Iterator[Section]:
    """One step of each profile on one scale."""
    known = [(name, step) for name, step in steps if step is not None and step.rows]
    longest = max((step.length_ms for _, step in known), default=0.0)
    if known:
        yield Section("One step", tuple(_picture(name, step, longest) for name, step in known))


def _picture(name: str, step: StepPicture, longest_ms: float) -> Picture:
    whose = f" of {name}" if name else ""
    title = f"Step {step.step} of the window{whose}: {milliseconds(step.length_ms)}"
    places = {what: place for place, what in enumerate(COLOURS)}
    rows = [
        (
            row.name,
            f"busy {percent(row.busy_share)}",
            [
                Span(begin, end, places.get(what, len(COLOURS) - 1), filled)
                for begin, end, what, filled in row.spans
            ],
        )
        for row in step.rows
    ]
    told = ", ".join(f"{row.name} {percent(row.busy_share)}" for row in step.rows)
    sentence = (
        f"{title}. Busy: {told}. The height of a bar is the share of its time that is filled."
    )
    return Picture(SpanChart(title, rows, COLOURS, longest_ms), sentence)


def _what_if(report: DiagnosisReport, most: int | None) -> Iterator[Section]:
    rows = [
        (milliseconds(each.step_ms), if_known(factor, each.gain), each.change)
        for each in report.what_if[:most]
    ]
    columns = (Column("step", right=True), Column("gain", right=True), Column("if"))
    why = report.replay.mismatch if report.replay is not None else None
    said = [Paragraph(f"The replay does not match, so no gain is claimed: {why}.")] if why else []
    if rows:
        yield Section("What if", (*_table(columns, rows), *said))


def _of_device(figures: ProfileFigures, most: int | None) -> Iterator[Section]:
    yield _kernels(figures, most)
    if figures.kernel_counters:
        yield Section(TITLE, (Table(counter_grid(figures.kernel_counters[:most])),))
    yield _operators(figures, most)
    if figures.idle is not None:
        yield Section("Idle time of the device", _idle(figures, figures.idle))
    yield _copies(figures, most)


def _kernels(figures: ProfileFigures, most: int | None) -> Section:
    rows = [
        (
            _ms(kernel.share, figures.step_ms),
            if_known(number, kernel.calls_per_step),
            f"{number(kernel.mean_us)} µs",
            percent(kernel.share),
            ON_CORES[kernel.tensor_core],
            kernel.group,
            short_kernel_name(kernel.name),
        )
        for kernel in (figures.top_kernels or ())[:most]
    ]
    columns = _columns("time a step", "calls", "mean", "share", "tensor cores", last="kind")
    groups, launches = figures.group_shares or {}, figures.launches
    said: list[str] = []
    if launches is not None and launches.kernels_per_step is not None:
        said.append(f"Kernels launched a step: {number(launches.kernels_per_step)}.")
    if groups:
        kinds = ", ".join(f"{name} {percent(share)}" for name, share in groups.items())
        said.append(f"Kernel time by kind: {kinds}.")
    table = _table((*columns, Column("kernel")), rows)
    return Section("Kernels", (*table, *map(Paragraph, said)))


def _operators(figures: ProfileFigures, most: int | None) -> Section:
    rows = [
        (
            _ms(each.share, figures.step_ms),
            if_known(number, each.calls_per_step),
            percent(each.share),
            each.name,
            each.shapes or "",
        )
        for each in (figures.top_operators or ())[:most]
    ]
    columns = _columns("time a step", "calls", "share", last="operator")
    return Section("Operators", tuple(_table((*columns, Column("shapes")), rows)))


def _copies(figures: ProfileFigures, most: int | None) -> Section:
    memory = {None: "", True: ", pageable", False: ", pinned"}
    rows = [
        (
            _ms(copy.share, figures.step_ms),
            _ms(copy.exposed_share, figures.step_ms),
            if_known(number, copy.calls_per_step),
            if_known(byte_size, copy.bytes_per_step),
            f"{copy.kind}{memory[copy.pageable]}",
        )
        for copy in (figures.copies or ())[:most]
    ]
    columns = _columns("time a step", "no kernel ran", "calls", "bytes", last="copies")
    share = figures.memory_transfer_concurrent
    if share is None:
        return Section("Copies", tuple(_table(columns, rows)))
    beside = f"Kernels ran in {percent(share)} of the time of copies between host and device."
    return Section("Copies", (*_table(columns, rows), Paragraph(beside)))


def _idle(figures: ProfileFigures, idle: IdleTime) -> tuple[Block, ...]:
    rows = [
        (_ms(share, figures.step_ms), percent(share), why)
        for field, why in IDLE.items()
        if (share := getattr(idle, field))
    ]
    rows.append((_ms(idle.total, figures.step_ms), percent(idle.total), "all idle time"))
    return tuple(_table(_columns("time a step", "share", last="because"), rows))


def _host_functions(report: DiagnosisReport, most: int | None) -> Iterator[Section]:
    """Times are of the sampled part of the window, a step: calls are not counted."""
    seconds = report.host_sampled_seconds
    step = None if report.figures is None else report.figures.step_ms
    if not seconds:
        return
    rows = [
        (
            _ms(each.self_seconds / seconds, step),
            _ms(each.total_seconds / seconds, step),
            percent(each.self_seconds / seconds),
            each.phase or "",
            _at(each),
        )
        for each in report.host_functions[:most]
    ]
    columns = _columns("own time a step", "with calls", "share", last="part")
    yield Section("Python functions", tuple(_table((*columns, Column("function")), rows)))


def _at(function: FunctionSamples) -> str:
    return place(Location(function.file, function.line, function.function))


def _memory(report: DiagnosisReport, most: int | None) -> Iterator[Section]:
    rows = [
        (
            byte_size(each.allocated_bytes),
            byte_size(each.reserved_bytes),
            byte_size(each.inactive_split_bytes),
            f"{each.device_allocations:,}",
            f"{each.retries:,}",
            f"{each.device} ({byte_size(each.total_bytes)})",
        )
        for each in report.memory
    ]
    columns = _columns("peak in use", "peak reserved", "fragments", "cudaMalloc", "retries",
                       last="device")  # fmt: skip
    if rows:
        yield Section("Memory", tuple(_table(columns, rows)))
    for trace in report.memory_traces:
        yield from _memory_trace(trace, most)


def _memory_trace(trace: MemoryTraceEvent, most: int | None) -> Iterator[Section]:
    """The most that each part of a step holds, and the lines that allocate most."""
    ranked = sorted(trace.peak_bytes.items(), key=lambda each: -each[1])
    parts = [(byte_size(peak), part) for part, peak in ranked]
    lines = [
        (
            byte_size(each.bytes),
            if_known(number, each.calls),
            byte_size(each.largest_bytes),
            each.phase or "",
            place(Location(each.file, each.line, each.function)),
        )
        for each in trace.allocations[:most]
    ]
    title, columns = f"Memory of device {trace.device}", _columns("peak", last="part of the step")
    yield Section(f"{title} by part of the step", tuple(_table(columns, parts)))
    columns = (*_columns("bytes a step", "calls", "largest", last="part"), Column("line"))
    yield Section(f"{title} by line", tuple(_table(columns, lines)))


def _columns(*numbers: str, last: str) -> tuple[Column, ...]:
    return (*(Column(name, right=True) for name in numbers), Column(last))


def _table(columns: tuple[Column, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[Block]:
    if rows:
        yield Table(Grid(columns, tuple(rows)).without_empty_columns())


def _ms(share: float | None, step_ms: float | None) -> str:
    """A share of the window as that of a mean step."""
    return "" if share is None or step_ms is None else milliseconds(share * step_ms)
