"""torch's caching allocator over the window."""

from __future__ import annotations

from typing import Any

from gpurun.records.messages.profile_events import AllocatorState


class AllocatorCounts:
    """Counters of each device at the begin of the window, to be compared with those at its end."""

    def __init__(self, torch: Any) -> None:
        self._cuda = torch.cuda
        self._begin: dict[int, dict[str, int]] = {}

    def begin(self) -> None:
        """Read the counters; nothing where no device is in use."""
        self._begin = {device: self._stats(device) for device in self._devices()}

    def finish(self) -> tuple[AllocatorState, ...] | None:
        """The counts since then; None if no device is in use."""
        found = tuple(self._state(device) for device in self._devices())
        return found or None

    def _state(self, device: int) -> AllocatorState:
        stats, before = self._stats(device), self._begin.get(device, {})

        def since(name: str) -> int:
            return stats.get(name, 0) - before.get(name, 0)

        return AllocatorState(
            device=device,
            allocated_bytes=stats.get("allocated_bytes.all.peak", 0),
            reserved_bytes=stats.get("reserved_bytes.all.peak", 0),
            total_bytes=self._cuda.get_device_properties(device).total_memory,
            retries=since("num_alloc_retries"),
            device_allocations=since("num_device_alloc"),
            inactive_split_bytes=stats.get("inactive_split_bytes.all.current", 0),
        )

    def _devices(self) -> list[int]:
        """Devices on which torch has allocated anything."""
        if not self._cuda.is_initialized():
            return []
        count = self._cuda.device_count()
        return [d for d in range(count) if self._stats(d).get("reserved_bytes.all.peak", 0)]

    def _stats(self, device: int) -> dict[str, int]:
        return dict(self._cuda.memory_stats(device))
