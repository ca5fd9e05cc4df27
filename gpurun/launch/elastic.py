"""Several ranks: torch's own elastic agent and rendezvous, with an honest ending.

torchrun's agent exits 1 whatever happened and prints a page; here the first failing rank's own code
comes back and one line names it. The only module of the parent that imports torch.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from gpurun.errors import GpurunError
from gpurun.launch.process import exit_code_of
from gpurun.options import Target, TargetKind

LOCAL_MONITOR_SECONDS = 0.02
"""How often the agent looks at its ranks on one node (torchrun: 0.1). Several nodes keep torchrun's
interval, because each look asks the rendezvous store."""

PAGES_OF_TEXT = "torch.distributed.elastic.multiprocessing.api"
"""The logger that reports each closing rank."""


def run_elastic(
    torchrun: Sequence[str],
    target: Target,
    environment: Mapping[str, str],
    tick: Callable[[int], None] | None = None,
    interval: float = 0.5,
) -> int:
    """Run `target` in ranks as torchrun would with these flags; the first failing rank's code.

    128+n where signal n ended that rank or this launcher. `tick(pid)` is called every `interval`
    seconds meanwhile, from a thread, with this process's id: the ranks are its children.
    """
    with _environment(environment), _signal_handlers(), _ticking(tick, interval):
        run = _import_torchrun()
        logging.getLogger(PAGES_OF_TEXT).setLevel(logging.CRITICAL)
        return _run(run, _arguments(run, torchrun, target))


def local_ranks(word: str) -> int:
    """How many ranks "gpu", "cpu" or "auto" makes here; `ValueError` where it makes none."""
    return int(_import_torchrun().determine_local_world_size(word))


def main(argv: list[str]) -> int:
    """Be the agent in a process of its own, with the environment as the caller made it."""
    from gpurun.arguments import parse

    options = parse(argv)
    try:
        return run_elastic(options.torchrun, options.target, os.environ)
    except GpurunError as error:
        sys.stderr.write(f"gpurun: {error.what}\ngpurun: {error.todo}\n")
        return int(error.code)


def _run(run: Any, arguments: argparse.Namespace) -> int:
    from torch.distributed import DistError
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousError

    try:
        run.run(arguments)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        return _report(rank, failure)
    except SignalException as stop:
        return 128 + int(stop.sigval)
    except (RendezvousError, DistError, OSError) as error:
        raise GpurunError(
            f"the ranks did not meet: {_first_line(error)}",
            "check --nnodes, --rdzv-endpoint, --master-addr and --master-port",
        ) from error
    except (ValueError, AssertionError) as error:
        raise GpurunError(_first_line(error), "see torchrun --help") from error
    return 0


def _report(rank: int, failure: Any) -> int:
    code = exit_code_of(failure.exitcode)
    how = f"exit code {code}"
    if failure.exitcode < 0:
        how = f"signal {signal.Signals(-failure.exitcode).name}"
    sys.stderr.write(f"gpurun: rank {rank} failed first: {how} (process {failure.pid})\n")
    return code


def _arguments(run: Any, torchrun: Sequence[str], target: Target) -> argparse.Namespace:
    """What torchrun's own parser makes of the flags, `PET_*` variables included."""
    parser = run.get_args_parser()
    parser.error = _usage_error
    kind = {TargetKind.MODULE: ["--module"], TargetKind.COMMAND: ["--no-python"]}
    arguments: argparse.Namespace = parser.parse_args(
        [*torchrun, *kind.get(target.kind, ()), target.path]
    )
    # not through the parser: it would drop a `--` among the script's arguments
    arguments.training_script_args = list(target.args)
    asked = any(word.startswith("--monitor-interval") for word in torchrun)
    if not asked and "PET_MONITOR_INTERVAL" not in os.environ and arguments.nnodes in ("1", "1:1"):
        arguments.monitor_interval = LOCAL_MONITOR_SECONDS
    return arguments


def _usage_error(message: str) -> NoReturn:
    raise GpurunError(message, "see torchrun --help for the flags that ask for ranks")


def _import_torchrun() -> Any:
    """torch.distributed.run; collecting garbage while it loads would take a tenth of the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        import torch.distributed.run as run
    finally:
        if collecting:
            gc.enable()
    return run


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@contextlib.contextmanager
def _environment(environment: Mapping[str, str]) -> Iterator[None]:
    """The ranks inherit the agent's environment: make it theirs for the while."""
    before = dict(os.environ)
    _become(environment)
    try:
        yield
    finally:
        _become(before)


def _become(environment: Mapping[str, str]) -> None:
    for name in set(os.environ) - set(environment):
        del os.environ[name]
    os.environ.update(environment)


@contextlib.contextmanager
def _signal_handlers() -> Iterator[None]:
    """Put back the handlers that the agent replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _ticking(tick: Callable[[int], None] | None, interval: float) -> Iterator[None]:
    if tick is None:
        yield
        return
    ended = threading.Event()

    def work() -> None:
        while not ended.wait(interval):
            tick(os.getpid())

    thread = threading.Thread(target=work, name="gpurun-sampler", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
