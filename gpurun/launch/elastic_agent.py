"""Several ranks: torch's own elastic agent and rendezvous, with an honest ending.

torchrun's agent exits 1 whatever happened and prints a page; here the first failing rank's own code
comes back and one line names it. With `rendezvous.py` the only module of the parent that imports
torch.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import logging
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from gpurun.arguments.options import Target, TargetKind
from gpurun.errors import GpurunError, say
from gpurun.launch.attempt_log import AttemptLog, NodeLost
from gpurun.launch.cluster_nodes import is_one_of_many, with_nodes
from gpurun.launch.process import Bystander
from gpurun.launch.rank_resources import check_numa_binding
from gpurun.records.failure import Attempt
from gpurun.records.spec import SPEC_VARIABLE

LOCAL_MONITOR_SECONDS = 0.02
"""Seconds between two looks of the agent at its ranks on one node (torchrun: 0.1). Several nodes
keep torchrun's interval, because each look asks the rendezvous store."""

PAGES_OF_TEXT = {
    "torch.distributed.elastic.multiprocessing.api": logging.CRITICAL,
    "torch.distributed.elastic.rendezvous.dynamic_rendezvous": logging.ERROR,
}
"""Loggers that report each closing rank and failed heartbeat, and the level they are cut to."""

NATIVE_LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"
"""Read once, when torch is loaded: below ERROR a lost store fills pages with native frames."""

PATIENCE = "keep_alive_max_attempt=6"
"""Heartbeats, one in 5 s, that a node may miss (torch: 3). torchrun only notes that a node is gone;
here it ends the job, so a launcher that was starved for a moment must not count as dead."""

NODE_LOST = 1
"""Exit code where another node is gone: torchrun's for whatever goes wrong."""


def run_elastic(
    torchrun: Sequence[str],
    target: Target,
    environment: Mapping[str, str],
    tick: Callable[[int], None] | None = None,
    interval: float = 0.5,
    heard: Callable[[int], None] | None = None,
) -> int:
    """Run `target` in ranks as torchrun would with these flags; the first failing rank's code.

    128+n where signal n ended that rank or this launcher. `tick(pid)` is called every `interval`
    seconds meanwhile, from a thread, with this process's id: the ranks are its children. Each
    attempt is kept in the run folder that `environment` names. `heard(number)` is called for each
    signal for the script, and for the one that ends the job.
    """
    with _environment(environment), _signal_handlers(), _ticking(tick, interval):
        run = import_torchrun()
        for name, level in PAGES_OF_TEXT.items():
            logging.getLogger(name).setLevel(level)
        arguments = _arguments(run, torchrun, target)
        folder = _run_dir(environment)
        with _log_folder(arguments, folder):
            command = (target.path, *target.args)
            return _run(run, arguments, AttemptLog(folder), command, heard or (lambda number: None))


def local_ranks(word: str) -> int:
    """The number of ranks that "gpu", "cpu" or "auto" means here; `ValueError` if it means none."""
    return int(import_torchrun().determine_local_world_size(word))


def main(argv: list[str]) -> int:
    """Be the agent in a process of its own, with the environment as the caller made it."""
    from gpurun.arguments.main_flags import parse

    options = parse(argv)
    try:
        return run_elastic(options.torchrun, options.target, os.environ)
    except GpurunError as error:
        say(error.what)
        say(error.todo)
        return int(error.code)


def _run(
    run: Any,
    arguments: argparse.Namespace,
    attempts: AttemptLog,
    command: Sequence[str],
    heard: Callable[[int], None],
) -> int:
    from torch.distributed import DistError
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler
    from torch.distributed.elastic.rendezvous.api import RendezvousError

    try:
        with (
            attempts.watching(LocalElasticAgent),
            attempts.telling_kills(SubprocessHandler),
            _user_signals_passed_on(attempts, command, heard),
        ):
            run.run(arguments)
    except ChildFailedError:
        return _report(attempts.done[-1])
    except SignalException as stop:
        heard(int(stop.sigval))
        attempts.end("stopped", f"signal {signal.Signals(stop.sigval).name}")
        return 128 + int(stop.sigval)
    except NodeLost as lost:
        say(f"{lost}; the ranks here were stopped")
        return NODE_LOST
    except (RendezvousError, DistError, OSError) as error:
        if attempts.running:
            attempts.end("broken", first_line(error))
            say(f"the rendezvous is gone, probably with its node: {first_line(error)}")
            say("the ranks here were stopped; see the output of that node's launcher")
            return NODE_LOST
        raise GpurunError(
            f"the rendezvous failed: {first_line(error)}",
            "check --nnodes, --rdzv-endpoint, --master-addr and --master-port; on one node "
            "--standalone takes a free port",
        ) from error
    except (ValueError, AssertionError) as error:
        raise GpurunError(first_line(error), "see torchrun --help") from error
    return 0


def _report(attempt: Attempt) -> int:
    first = attempt.failures[0]
    say(f"rank {first.rank} failed first: {first.how}")
    if first.log is not None:
        say(f"its stderr: {first.log}")
    return first.exit_code


def _run_dir(environment: Mapping[str, str]) -> Path | None:
    """The run folder, by the spec that the environment names; None for an unrecorded run."""
    try:
        with open(environment[SPEC_VARIABLE]) as file:
            return Path(json.load(file)["run_dir"])
    except (KeyError, OSError, ValueError):
        return None


def _arguments(run: Any, torchrun: Sequence[str], target: Target) -> argparse.Namespace:
    """The flags as torchrun's own parser reads them, `PET_*` variables included."""
    torchrun = with_nodes(torchrun, os.environ)
    parser = run.get_args_parser()
    parser.error = usage_error
    kind = {TargetKind.MODULE: ["--module"], TargetKind.COMMAND: ["--no-python"]}
    arguments: argparse.Namespace = parser.parse_args(
        [*torchrun, *kind.get(target.kind, ()), target.path]
    )
    # not through the parser: it would drop a `--` among the script's arguments
    arguments.training_script_args = list(target.args)
    asked = any(word.startswith("--monitor-interval") for word in torchrun)
    if getattr(arguments, "numa_binding", None) is not None:
        check_numa_binding(run.torch.cuda.is_available())
    one_node = arguments.nnodes in ("1", "1:1")
    if not asked and "PET_MONITOR_INTERVAL" not in os.environ and one_node:
        arguments.monitor_interval = LOCAL_MONITOR_SECONDS
    if not one_node and PATIENCE.partition("=")[0] not in arguments.rdzv_conf:
        arguments.rdzv_conf = ",".join(filter(None, (arguments.rdzv_conf, PATIENCE)))
    tasks = is_one_of_many(os.environ)
    if tasks is not None and one_node:
        say(f"each of the {tasks} tasks of this srun runs a job of its own (see --nnodes auto)")
    return arguments


def usage_error(message: str) -> NoReturn:
    """Raise in place of torchrun's parser, which would end the process."""
    raise GpurunError(message, "see torchrun --help for the flags that ask for ranks")


def import_torchrun() -> Any:
    """torch.distributed.run; collecting garbage while it loads would take a tenth of the time."""
    collecting = gc.isenabled()
    gc.disable()
    native = os.environ.get(NATIVE_LOG_LEVEL)
    os.environ.setdefault(NATIVE_LOG_LEVEL, "ERROR")
    try:
        import torch.distributed.run as run
    finally:
        if native is None:
            del os.environ[NATIVE_LOG_LEVEL]  # the ranks keep their own
        if collecting:
            gc.enable()
    return run


def first_line(error: BaseException) -> str:
    """The first line of an error's text, without the pages that torch adds."""
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
def _user_signals_passed_on(
    attempts: AttemptLog, command: Sequence[str], heard: Callable[[int], None]
) -> Iterator[None]:
    """SIGUSR1 and SIGUSR2 are for the script, unless torch's agent is told to end by them."""
    numbers = [n for n in (signal.SIGUSR1, signal.SIGUSR2) if signal.getsignal(n) == signal.SIG_DFL]
    if not numbers or threading.current_thread() is not threading.main_thread():
        yield
        return
    with contextlib.closing(Bystander(command)) as bystander:

        def pass_on(number: int, frame: object) -> None:
            heard(number)
            if not bystander.heard(number):
                attempts.send_to_ranks(number)

        for number in numbers:
            signal.signal(number, pass_on)
        yield


@contextlib.contextmanager
def _signal_handlers() -> Iterator[None]:
    """Put back the handlers that the agent and `_user_signals_passed_on` replace."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ending = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    numbers = (*ending, signal.SIGUSR1, signal.SIGUSR2)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _log_folder(arguments: argparse.Namespace, run_dir: Path | None) -> Iterator[None]:
    """A folder for the while: torch's own would stay in TMPDIR, with nothing in it but errors.

    It lies in the run's folder, so that what a killed launcher leaves stays below `.gpurun/`.
    """
    if arguments.log_dir is not None or {arguments.redirects, arguments.tee} != {"0"}:
        yield
        return
    make = partial(tempfile.TemporaryDirectory, prefix="gpurun-ranks-", ignore_cleanup_errors=True)
    try:
        made = make(dir=run_dir)
    except OSError:  # it takes no further folder
        made = make()
    with made as folder:
        arguments.log_dir = folder
        yield


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
