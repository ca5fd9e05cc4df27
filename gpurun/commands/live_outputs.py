"""`--prometheus` and `--tensorboard` of a run: figures for other tools while the script runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gpurun.arguments.options import Options

if TYPE_CHECKING:
    from gpurun.report.live.metrics_server import MetricsServer
    from gpurun.report.live.tensorboard_process import TensorboardProcess

Note = Callable[[str], None]


class LiveOutputs:
    """Takes the port at once, so that a taken one is an error before the script starts.

    The script is started by a fork, and threads do not mix with that: the server answers from the
    first tick on. Connections wait until then.
    """

    def __init__(self, options: Options) -> None:
        self._server: MetricsServer | None = None
        self._events: TensorboardProcess | None = None
        if options.tensorboard is not None:
            from gpurun.report.live.tensorboard_process import TensorboardProcess

            self._events = TensorboardProcess(Path(options.tensorboard))
        if options.prometheus is not None:
            from gpurun.report.live.metrics_server import MetricsServer

            self._server = MetricsServer(options.prometheus)
        self.beside: tuple[int, ...] = ()
        """Processes of ours beside the script's."""

    def begin(self, run_dir: Path | None, note: Note | None) -> None:
        """The script is about to start. `note` tells the user where the metrics are."""
        self._run_dir = run_dir
        if run_dir is None:
            self.close()
            self._server = self._events = None
            if note is not None:
                note("without a record there are no figures for --prometheus and --tensorboard")
            return
        if self._events is not None:
            self.beside = (self._events.start(run_dir),)
        if self._server is not None and note is not None:
            note(f"metrics: {self._server.url}")

    def tick(self) -> None:
        """The script runs: answer from now on."""
        if self._server is None or self._server.started or self._run_dir is None:
            return
        from gpurun.measure.live.followed_run import FollowedRun

        self._server.start(FollowedRun(self._run_dir).report)

    def close(self, note: Note | None = None) -> None:
        """The script has ended. `note` tells the user what is missing."""
        if self._server is not None:
            self._server.close()
        missing = None if self._events is None else self._events.finish()
        if missing is not None and note is not None:
            note(missing)
