"""The state of GPUs and trainings as Prometheus metrics, from a thread of the launcher."""

from __future__ import annotations

import io
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gpurun.errors import GpurunError
from gpurun.records.monitor import MonitorReport, TrainingState
from gpurun.report.live import require

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    Family = CounterMetricFamily | GaugeMetricFamily


SHORTEST_SECONDS = 0.5
"""The state is looked at so seldom, however often it is scraped."""

GPU_FIGURES = (
    (
        "gpu_utilization_percent",
        "gpu_utilization_percent",
        "SM activity where it is measured, else NVML utilisation.",
    ),
    ("gpu_memory_used_bytes", "memory_used_bytes", "GPU memory in use."),
    ("gpu_memory_total_bytes", "memory_total_bytes", "GPU memory in all."),
    ("gpu_temperature_celsius", "temperature_celsius", "Temperature of the GPU."),
    ("gpu_power_usage_watts", "power_watts", "Power that the GPU draws."),
)
"""Name, field of `GpuState`, meaning."""
RANK_LABELS = ("run", "script", "rank")
TRAINING_FIGURES = (
    ("training_step_time_seconds", "step_time_seconds", "Mean time of the latest steps."),
    (
        "training_samples_per_second",
        "samples_per_second",
        "Samples a second of this rank over the latest steps.",
    ),
    ("training_loss", "loss", "The latest loss; +Inf if it was not finite."),
    ("training_learning_rate", "learning_rate", "Of the first parameter group."),
    (
        "training_last_step_timestamp_seconds",
        "last_step_unix_seconds",
        "When the latest recorded step ended, in seconds since 1970.",
    ),
)
"""Name, field of `RankState`, meaning."""
TRAINING_COUNTS = (
    ("training_steps", "steps", "Steps since the start."),
    ("training_samples", "samples", "Samples since the start, of this rank."),
)
"""The same of counters, to whose names Prometheus adds `_total`."""


class Metrics:
    """A collector of `prometheus_client`. `look` is called by one thread at a time."""

    def __init__(self, look: Callable[[], MonitorReport]) -> None:
        self._look = look
        self._lock = threading.Lock()
        self._seen: MonitorReport | None = None
        self._due = 0.0

    def collect(self) -> Iterator[Family]:
        """All figures; one that was not measured has no sample."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        report = self._state()
        for name, field, meaning in GPU_FIGURES:
            family = GaugeMetricFamily(name, meaning, labels=["gpu_id"])
            for gpu in report.gpus:
                _add(family, [str(gpu.gpu_id)], getattr(gpu, field))
            yield family
        for name, field, meaning in TRAINING_FIGURES:
            yield _of_ranks(GaugeMetricFamily(name, meaning, labels=RANK_LABELS), report, field)
        for name, field, meaning in TRAINING_COUNTS:
            yield _of_ranks(CounterMetricFamily(name, meaning, labels=RANK_LABELS), report, field)

    def _state(self) -> MonitorReport:
        with self._lock:
            if self._seen is None or time.monotonic() >= self._due:
                self._seen = self._look()
                self._due = time.monotonic() + SHORTEST_SECONDS
            return self._seen


def _of_ranks(family: Family, report: MonitorReport, field: str) -> Family:
    for training in report.trainings:
        script = _script(training.command)
        for number, rank in zip(_numbers(training), training.ranks, strict=True):
            _add(family, [training.run, script, str(number)], getattr(rank, field))
    return family


def _numbers(training: TrainingState) -> Sequence[int]:
    """A number for each rank, no two alike; processes that a script spawns itself have none."""
    numbers = [rank.rank for rank in training.ranks if rank.rank is not None]
    return numbers if len(numbers) == len(training.ranks) else range(len(training.ranks))


def _script(command: tuple[str, ...]) -> str:
    """The script or module as UTF-8 can hold it; a path may have bytes that are none."""
    name = next((word for word in command if word != "-m"), "")
    return name.encode("utf-8", "backslashreplace").decode()


def _add(family: Family, labels: list[str], value: float | None) -> None:
    if value is not None:
        family.add_metric(labels, value)


BACKLOG = 128
"""Connections that wait until they are answered: also those that come before the script starts."""
MOST_CONNECTIONS = 16
"""At once, each with a thread. One more takes the place of the oldest."""
REQUEST_SECONDS = 10
"""A request and its answer take no longer, in however many pieces they come."""
ROOM_SECONDS = 1
"""The oldest connection has so long to end, and all have at the end of the run."""


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = BACKLOG

    def __init__(self, address: tuple[str, int]) -> None:
        self._began: dict[Any, float] = {}  # the oldest connection first
        self._change = threading.Condition()
        super().__init__(address, socketserver.BaseRequestHandler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread; a new connection that finds no room is dropped."""
        with self._change:
            if not self._room_among(MOST_CONNECTIONS):
                self.shutdown_request(request)
                return
            self._began[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """The connection has ended."""
        with self._change:
            self._began.pop(request, None)
            self._change.notify()
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """End the connections that take too long."""
        with self._change:
            self._end([r for r, t in self._began.items() if time.monotonic() > t + REQUEST_SECONDS])

    def server_close(self) -> None:
        """Give the port back. No thread is left: python aborts if one runs while it exits."""
        super().server_close()
        with self._change:
            self._room_among(1)

    def _room_among(self, most: int) -> bool:
        """End the oldest connections until fewer than `most` are left; False if they stay."""
        self._end(list(self._began)[: max(0, len(self._began) + 1 - most)])
        return self._change.wait_for(lambda: len(self._began) < most, ROOM_SECONDS)

    def _end(self, requests: Iterable[Any]) -> None:
        for request in requests:
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is no matter of ours."""


class _ServerIPv6(_Server):
    address_family = socket.AF_INET6


class MetricsServer:
    """Owns the port from its construction on."""

    def __init__(self, address: tuple[str, int]) -> None:
        require("prometheus_client", "--prometheus")
        host, port = address
        make = _ServerIPv6 if ":" in host else _Server
        try:
            self._server = make(address)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise GpurunError(
                f"--prometheus: port {port} of {host} cannot be used: {reason}",
                "name another port, or 0 for any free one",
            ) from None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """The address of the metrics."""
        host, port = self._server.server_address[:2]
        shown = f"[{host!s}]" if ":" in str(host) else str(host)
        return f"http://{shown}:{port}/metrics"

    @property
    def started(self) -> bool:
        """True once it answers."""
        return self._thread is not None

    def start(self, look: Callable[[], MonitorReport]) -> None:
        """Answer from now on."""
        from prometheus_client import CollectorRegistry
        from prometheus_client.exposition import MetricsHandler

        class Handler(MetricsHandler):
            timeout = REQUEST_SECONDS
            registry = CollectorRegistry(auto_describe=False)

            def do_HEAD(self) -> None:
                """The head of what GET answers."""
                wire, self.wfile = self.wfile, io.BytesIO()
                self.do_GET()
                head, _, _ = self.wfile.getvalue().partition(b"\r\n\r\n")
                self.wfile = wire
                self.wfile.write(head + b"\r\n\r\n")

        Handler.registry.register(Metrics(look))
        self._server.RequestHandlerClass = Handler
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="gpurun-metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Give the port back."""
        if self._thread is not None:
            self._server.shutdown()
        self._server.server_close()
