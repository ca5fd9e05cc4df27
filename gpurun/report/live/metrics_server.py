"""Serves metrics over HTTP from a thread of the launcher. Binds first, answers later."""

from __future__ import annotations

import io
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from gpurun.errors import GpurunError
from gpurun.records.monitor import MonitorReport
from gpurun.report.live.required_package import require

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

        from gpurun.report.live.prometheus_metrics import Metrics

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
