"""Import a Chrome trace of torch.profiler (Kineto), as a stream."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpurun.errors import GpurunError
from gpurun.timeline.columns import Columns
from gpurun.timeline.event_tables import clock_mark, phase_name, timeline_of
from gpurun.timeline.json_stream import ChromeTrace
from gpurun.timeline.kernel_groups import kernel_group, uses_tensor_cores
from gpurun.timeline.model import (
    MALFORMED,
    Awaited,
    Copy,
    CopyKind,
    Device,
    Group,
    Kernel,
    KernelKind,
    Range,
    RuntimeCall,
    Timeline,
    launch_dimensions,
    malformed,
)
from gpurun.timeline.runtime_calls import plain_name

Event = Mapping[str, Any]
_COPY = re.compile(r"Memcpy (\w+)(?: \((\w+) -> (\w+)\))?", re.IGNORECASE)
_DIRECTIONS = {"htod": CopyKind.H2D, "dtoh": CopyKind.D2H, "dtod": CopyKind.D2D}
BASE = "baseTimeNanoseconds"
"""Of the header: the Unix time at which the times of events begin."""
NO_STREAM = 2**32 - 1
_ELEMENT_BYTES = {"Float": 4, "Half": 2, "BFloat16": 2, "Double": 8, "Int": 4, "Long": 8, "Byte": 1}


def read(path: Path, unix_offset_ns: int | None = None) -> Timeline:
    """The timeline of a trace; `GpurunError` for a file that is none, is cut off or is empty.

    `unix_offset_ns`: by how much the Unix time is ahead of the runtime's clock. It ties a trace
    without marks (of the device alone) to that clock.
    """
    reading, unusable = _Reading(), []
    trace = ChromeTrace(path)
    try:
        for event in trace.events():
            try:
                reading.take(event)
            except MALFORMED as error:
                unusable.append(f"{str(event)[:80]}: {type(error).__name__}: {error}")
        if reading.is_empty and (trace.faults or unusable):
            raise malformed(path, [*trace.faults, *unusable][0])
        timeline = reading.timeline(path, trace.header, unix_offset_ns)
    except MALFORMED as error:
        raise malformed(path, f"{type(error).__name__}: {error}") from None
    return replace(timeline, notes=tuple(_left_out(path, trace.faults, unusable)))


class _Reading:
    """What has been read of one trace so far."""

    def __init__(self) -> None:
        self._kernels, self._copies = Columns(Kernel), Columns(Copy)
        self._calls, self._awaited = Columns(RuntimeCall), Columns(Awaited)
        self._operators, self._ranges = Columns(Range), Columns(Range)
        self._marks: list[tuple[int, int]] = []
        self._of_device: dict[str, Columns[Any]] = {
            "kernels": self._kernels, "copies": self._copies, "runtime_calls": self._calls,
        }  # fmt: skip
        self._others: dict[str, Columns[Any]] = {
            "awaited": self._awaited, "operators": self._operators, "ranges": self._ranges,
        }  # fmt: skip
        self._taken: dict[str, Callable[[int, int, Event, Event], None]] = {
            "kernel": self._take_kernel,
            "gpu_memcpy": self._take_copy,
            "gpu_memset": self._take_copy,
            "cuda_runtime": self._take_call,
            "cuda_driver": self._take_call,
            "cuda_sync": self._take_awaited,
            "cpu_op": self._take_operator,
            "user_annotation": self._take_range,
        }

    @property
    def is_empty(self) -> bool:
        """Nothing was kept of the trace."""
        return not any(map(len, (*self._of_device.values(), *self._others.values())))

    def take(self, event: Event) -> None:
        """Keep what the model has a place for."""
        take = self._taken.get(event.get("cat", ""))
        if take is None or event.get("ph") != "X":
            return
        begin = round(float(event["ts"]) * 1000)
        end = begin + round(float(event.get("dur", 0)) * 1000)
        if end < begin or not isinstance(event["name"], str):
            raise ValueError("it has no name, or ends before it begins")
        take(begin, end, event, event.get("args") or {})

    def _take_kernel(self, begin: int, end: int, event: Event, args: Event) -> None:
        name = event["name"]
        group = Group.COMMUNICATION if "Collective name" in args else kernel_group(name)
        kind = KernelKind(
            name=name,
            group=group,
            tensor_core=uses_tensor_cores(name),
            grid=_dimensions(args.get("grid")),
            block=_dimensions(args.get("block")),
            registers=args.get("registers per thread"),
            shared_memory_bytes=args.get("shared memory"),
            message_bytes=_message_bytes(args),
        )
        self._kernels.add(begin, end, *_place(args), kind)

    def _take_copy(self, begin: int, end: int, event: Event, args: Event) -> None:
        match = _COPY.match(event["name"])
        direction, source, target = match.groups() if match else ("", None, None)
        kind = _DIRECTIONS.get((direction or "").lower(), CopyKind.OTHER)
        kind = CopyKind.SET if event["cat"] == "gpu_memset" else kind
        host = {CopyKind.H2D: source, CopyKind.D2H: target}.get(kind)
        pageable = None if host is None else host.lower() == "pageable"
        self._copies.add(begin, end, *_place(args), int(args.get("bytes", 0)), kind, pageable)

    def _take_call(self, begin: int, end: int, event: Event, args: Event) -> None:
        thread = event.get("tid", 0)
        self._calls.add(begin, end, _number(thread), _correlation(args), plain_name(event["name"]))

    def _take_awaited(self, begin: int, end: int, event: Event, args: Event) -> None:
        """Recorded where `enable_cuda_sync_events` is on; a stream below 0 stands for all."""
        source, own = args.get("wait_on_stream"), args.get("stream")
        record = _number(args.get("wait_on_cuda_event_record_corr_id", 0))
        of_event = _is_stream(source)
        stream = source if of_event else own if _is_stream(own) else None
        waiting = own if of_event and _is_stream(own) else None
        self._awaited.add(begin, end, _correlation(args), max(record, 0), stream, waiting)

    def _take_operator(self, begin: int, end: int, event: Event, args: Event) -> None:
        self._operators.add(begin, end, _number(event.get("tid", 0)), event["name"])

    def _take_range(self, begin: int, end: int, event: Event, args: Event) -> None:
        mark = clock_mark(event["name"])
        if mark is not None:
            self._marks.append((begin, mark))
            return
        self._ranges.add(begin, end, _number(event.get("tid", 0)), phase_name(event["name"]))

    def timeline(
        self, path: Path, header: Mapping[str, Any], unix_offset_ns: int | None
    ) -> Timeline:
        """Everything that was read, on the runtime's clock where the trace is tied to it."""
        if self.is_empty:
            raise GpurunError(f"{path} holds no event of a training", "record some steps")
        base = int(header.get(BASE) or 0)
        seen = any(map(len, self._of_device.values()))
        tables = self._of_device if seen else {}
        return timeline_of(
            "kineto",
            {**tables, **{name: table for name, table in self._others.items() if len(table)}},
            self._marks,
            0 if unix_offset_ns is None else base - unix_offset_ns,
            rank=(header.get("distributedInfo") or {}).get("rank"),
            devices=_devices(header) if seen else None,
        )


def _left_out(path: Path, faults: Sequence[str], unusable: Sequence[str]) -> Iterator[str]:
    """The events that are not among those of the timeline: so many, and the first of them."""
    if faults:
        more = f", and so are {len(faults) - 1:,} more" if faults[1:] else ""
        hint = "a quote in a name may lack its backslash: mend it there to have the event"
        yield f"{path.name}: {faults[0]}; the event there is left out{more}; {hint}"
    if unusable:
        told = f"events left out for their values: {len(unusable):,}"
        yield f"{path.name}: {told}, the first: {unusable[0]}"


def _place(args: Event) -> tuple[int, int, int]:
    """Device, stream and correlation of a device's event."""
    return _number(args.get("device", 0)), _number(args.get("stream", 0)), _correlation(args)


def _correlation(args: Event) -> int:
    return _number(args.get("correlation", 0))


def _number(value: object) -> int:
    """A number where Kineto now and then writes a word ("Trace PyTorch Profiler")."""
    return value if isinstance(value, int) else 0


def _is_stream(value: object) -> bool:
    """A stream's number, and not the one that stands for none."""
    return isinstance(value, int) and 0 <= value < NO_STREAM


def _dimensions(value: Any) -> tuple[int, int, int] | None:
    return launch_dimensions(*value) if isinstance(value, list) and len(value) == 3 else None


def _message_bytes(args: Event) -> int | None:
    elements, size = args.get("In msg nelems"), _ELEMENT_BYTES.get(args.get("dtype", ""))
    return elements * size if isinstance(elements, int) and size else None


def _devices(header: Mapping[str, Any]) -> tuple[Device, ...] | None:
    found = header.get("deviceProperties")
    if not found:
        return None
    return tuple(
        Device(
            index=int(each["id"]),
            name=str(each["name"]),
            multiprocessors=each.get("numSms"),
            capability=(each["computeMajor"], each["computeMinor"])
            if "computeMajor" in each
            else None,
        )
        for each in found
    )
