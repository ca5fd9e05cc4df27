"""Serves metrics over HTTP from a thread of the launcher. Binds first, answers later."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Callable

from gpurun.errors import GpurunError
from gpurun.records.monitor import MonitorReport
from gpurun.report.live.required_package import require

BACKLOG = 128
"""Connections that wait until they are answered: also those that come before the script starts."""
REQUEST_SECONDS = 10
"""A client that sends nothing for so long is dropped."""


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = BACKLOG

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
            self._server = make(address, socketserver.BaseRequestHandler)
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

        registry = CollectorRegistry(auto_describe=False)
        registry.register(Metrics(look))
        handler = MetricsHandler.factory(registry)
        handler.timeout = REQUEST_SECONDS  # type: ignore[attr-defined]
        self._server.RequestHandlerClass = handler
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="gpurun-metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Give the port back."""
        if self._thread is not None:
            self._server.shutdown()
        self._server.server_close()
