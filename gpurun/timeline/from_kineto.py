"""Import a Chrome trace of torch.profiler (Kineto), as a stream."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpurun.errors import GpurunError
from gpurun.timeline import model
from gpurun.timeline.columns import Columns
from gpurun.timeline.event_tables import clock_mark, phase_name, timeline_of, told_stream
from gpurun.timeline.json_stream import ChromeTrace
from gpurun.timeline.kernel_groups import kernel_group, uses_tensor_cores
from gpurun.timeline.model import MALFORMED, CopyKind, Group, KernelKind, malformed
from gpurun.timeline.runtime_calls import plain_name

Event = Mapping[str, Any]
_COPY = re.compile(r"Memcpy (\w+)(?: \((\w+) -> (\w+)\))?", re.IGNORECASE)
_DIRECTIONS = {"htod": CopyKind.H2D, "dtoh": CopyKind.D2H, "dtod": CopyKind.D2D}
BASE = "baseTimeNanoseconds"
"""Of the header: the Unix time at which the times of events begin."""
OF_DEVICE = {"kernels": model.Kernel, "copies": model.Copy, "runtime_calls": model.RuntimeCall}
"""Tables that are empty, and not unmeasured, if one of them has an event."""
OTHERS = {"awaited": model.Awaited, "operators": model.OperatorCall, "ranges": model.Range}
LONGEST_SHAPES = 80
"""Characters: of a list of all parameters the first tell enough."""
_ELEMENT_BYTES = {"Float": 4, "Half": 2, "BFloat16": 2, "Double": 8, "Int": 4, "Long": 8, "Byte": 1}


def read(path: Path, unix_offset_ns: int | None = None) -> model.Timeline:
    """The timeline of a trace; `GpurunError` for a file that is none, is cut off or is empty.

    `unix_offset_ns`: by how much the Unix time is ahead of the runtime's clock. It ties a trace
    without marks (of the device alone) to that clock.
    """
    reading, trace = _Reading(), ChromeTrace(path)
    unusable: list[str] = []
    try:
        for event in trace.events():
            try:
                reading.take(event)
            except MALFORMED as error:
                why = f"{str(event)[:80]}: {type(error).__name__}: {error}"
                unusable.append(unusable[0] if unusable else why)
        if not any(map(len, reading.tables.values())):
            if trace.faults or unusable:
                raise malformed(path, [*trace.faults, *unusable][0])
            raise GpurunError(f"{path} holds no event of a training", "record some steps")
        timeline = reading.timeline(trace.header, unix_offset_ns)
    except MALFORMED as error:
        raise malformed(path, f"{type(error).__name__}: {error}") from None
    return replace(timeline, notes=tuple(_left_out(path, trace.faults, unusable)))


class _Reading:
    """What has been read of one trace so far."""

    def __init__(self) -> None:
        self.tables = {name: Columns[Any](kind) for name, kind in (OF_DEVICE | OTHERS).items()}
        self._marks: list[tuple[int, int]] = []
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
        grid, block = (_dimensions(args.get(key)) for key in ("grid", "block"))
        elements, size = args.get("In msg nelems"), _ELEMENT_BYTES.get(args.get("dtype", ""))
        message = elements * size if isinstance(elements, int) and size else None
        told = uses_tensor_cores(name), grid, block, message
        self.tables["kernels"].add(begin, end, *_place(args), KernelKind(name, group, *told))

    def _take_copy(self, begin: int, end: int, event: Event, args: Event) -> None:
        match = _COPY.match(event["name"])
        direction, source, target = match.groups() if match else ("", None, None)
        kind = _DIRECTIONS.get((direction or "").lower(), CopyKind.OTHER)
        kind = CopyKind.SET if event["cat"] == "gpu_memset" else kind
        host = {CopyKind.H2D: source, CopyKind.D2H: target}.get(kind)
        told = int(args.get("bytes", 0)), kind, None if host is None else host.lower() == "pageable"
        self.tables["copies"].add(begin, end, *_place(args), *told)

    def _take_call(self, begin: int, end: int, event: Event, args: Event) -> None:
        name = plain_name(event["name"])
        told = _number(event, "tid"), _number(args, "correlation"), name
        self.tables["runtime_calls"].add(begin, end, *told)

    def _take_awaited(self, begin: int, end: int, event: Event, args: Event) -> None:
        """Recorded where `enable_cuda_sync_events` is on; a stream below 0 stands for all."""
        source, own = (told_stream(args.get(name)) for name in ("wait_on_stream", "stream"))
        record = _number(args, "wait_on_cuda_event_record_corr_id")
        told = max(record, 0), own if source is None else source, None if source is None else own
        self.tables["awaited"].add(begin, end, _number(args, "correlation"), *told)

    def _take_operator(self, begin: int, end: int, event: Event, args: Event) -> None:
        told = event["name"], _shapes(args.get("Input Dims"))
        self.tables["operators"].add(begin, end, _number(event, "tid"), *told)

    def _take_range(self, begin: int, end: int, event: Event, args: Event) -> None:
        mark = clock_mark(event["name"])
        if mark is not None:
            self._marks.append((begin, mark))
        else:
            name = phase_name(event["name"])
            self.tables["ranges"].add(begin, end, _number(event, "tid"), name)

    def timeline(self, header: Mapping[str, Any], unix_offset_ns: int | None) -> model.Timeline:
        """Everything that was read, on the runtime's clock where the trace is tied to it."""
        base = int(header.get(BASE) or 0)
        seen = any(len(self.tables[name]) for name in OF_DEVICE)
        known = {n: t for n, t in self.tables.items() if len(t) or (seen and n in OF_DEVICE)}
        return timeline_of(
            "kineto",
            known,
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


def _place(args: Event) -> Iterator[int]:
    """Device, stream and correlation of a device's event."""
    return (_number(args, name) for name in ("device", "stream", "correlation"))


def _number(of: Event, name: str) -> int:
    """A number where Kineto now and then writes a word ("Trace PyTorch Profiler")."""
    value = of.get(name)
    return value if isinstance(value, int) else 0


def _dimensions(value: Any) -> tuple[int, int, int] | None:
    is_one = isinstance(value, list) and len(value) == 3
    return model.launch_dimensions(*value) if is_one else None


def _shapes(value: Any) -> str | None:
    """The shapes of an operator's tensors in words; other inputs have none."""
    known = [str(each) for each in value if each] if isinstance(value, list) else []
    return " ".join(known)[:LONGEST_SHAPES] or None


def _devices(header: Mapping[str, Any]) -> tuple[model.Device, ...] | None:
    found = tuple(
        model.Device(
            int(each["id"]),
            str(each["name"]),
            each.get("numSms"),
            (each["computeMajor"], each["computeMinor"]) if "computeMajor" in each else None,
        )
        for each in header.get("deviceProperties") or ()
    )
    return found or None
