"""What several test files share: gpurun as a child process, as a user starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Generator, Mapping
from pathlib import Path

import pytest

from gpurun import main
from tests import forked, turns

REPOSITORY = forked.REPOSITORY

Gpurun = Callable[..., "subprocess.CompletedProcess[bytes]"]
"""`gpurun(*arguments, cwd=..., env=..., timeout=...)`: the finished child, its output as bytes."""


ABORTED = b"terminate called without an active exception"
"""The whole message where torch's gloo aborts a process of ranks at its very end.

On a loaded machine this befalls 1 to 2 % of launches, those of torchrun without gpurun too.
"""


def unless_aborted(
    launch: Callable[[], subprocess.CompletedProcess[bytes]],
    codes: Collection[int] = (128 + signal.SIGABRT, -signal.SIGABRT),
) -> subprocess.CompletedProcess[bytes]:
    """A launch, repeated at most twice while torch aborts it at its very end.

    `codes`: exit codes of a launch whose rank, or which itself, was aborted.
    """
    for _ in range(2):
        done = launch()
        if done.returncode not in codes or ABORTED not in done.stderr.splitlines():
            return done
    return launch()


def without_verdict(stderr: bytes) -> bytes:
    """What the script wrote to stderr: all but gpurun's closing line, which must be there."""
    lines = stderr.splitlines(keepends=True)
    assert lines, "gpurun's closing line is missing"
    assert lines[-1].startswith(b"verdict=")
    return b"".join(lines[:-1])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-gpu", action="store_true", help="fail, rather than skip, tests that need a GPU"
    )
    parser.addoption(
        "--require-postgres",
        action="store_true",
        help="fail, rather than skip, tests that need a PostgreSQL server",
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    return turns.workers()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Each test waits for its turn before its time limit begins."""
    with turns.turn(alone=item.get_closest_marker("alone") is not None):
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Coverage measures the tests' own processes and their forks, and no process that is started.

    Its start takes a third of a second, of some thousand processes. Nor does it measure the forks
    of slow tests: the tracer takes a share of each step, which whole tunings would measure too.
    """
    forked.NURSERY.take_coverage_over(measure=item.get_closest_marker("slow") is None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests come first, so that short ones fill the cores at the end.

    Tests that run alone come last: none waits for them, and they wait only for each other.
    """

    def order(item: pytest.Item) -> tuple[bool, bool]:
        alone, slow = (item.get_closest_marker(name) is not None for name in ("alone", "slow"))
        return alone, not slow

    items.sort(key=order)


@pytest.fixture
def clean_environment() -> dict[str, str]:
    """This process's environment without what would steer gpurun, torchrun or a terminal's look."""
    steering = ("GPURUN_", "PET_", "TORCHELASTIC_")
    ranks = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NO_COLOR"}
    kept = {k: v for k, v in os.environ.items() if not k.startswith(steering) and k not in ranks}
    return {**kept, "PYTHONPATH": str(REPOSITORY)}


@pytest.fixture
def gpurun(
    request: pytest.FixtureRequest, tmp_path: Path, clean_environment: dict[str, str]
) -> Gpurun:
    """Run `python -m gpurun ...` in `tmp_path` (or `cwd`), with `env` added, stdin closed.

    In a test that is marked `forked` by forks of a process that has imported torch, but not where
    the test itself is marked `forked(False)`.
    """
    mark = request.node.get_closest_marker("forked")
    from_warm_parent = mark is not None and mark.args != (False,)

    def run(
        *arguments: str | Path,
        cwd: Path = tmp_path,
        env: Mapping[str, str] | None = None,
        timeout: float = 600,
    ) -> subprocess.CompletedProcess[bytes]:
        environment = {**clean_environment, **(env or {})}
        if from_warm_parent:
            return forked.NURSERY.launch([*map(str, arguments)], cwd, environment, timeout)
        return subprocess.run(
            [sys.executable, "-m", "gpurun", *map(str, arguments)],
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            check=False,
        )

    return run


@pytest.fixture
def in_process(
    tmp_path: Path,
    clean_environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Gpurun:
    """As `gpurun`, called in this process: for what is refused before anything is launched."""

    def run(
        *arguments: str | Path, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        words = [str(argument) for argument in arguments]
        capfd.readouterr()
        with monkeypatch.context() as patched:
            patched.chdir(tmp_path)
            for name in set(os.environ) - set(clean_environment):
                patched.delenv(name)
            for name, value in {**clean_environment, **(env or {})}.items():
                patched.setenv(name, value)
            code = main(words)
        out, err = capfd.readouterr()
        return subprocess.CompletedProcess(words, code, out.encode(), err.encode())

    return run


@pytest.fixture(autouse=True)
def _gpu_when_asked(request: pytest.FixtureRequest) -> None:
    """Skip what is marked `gpu` where there is none; fail it under `--require-gpu`."""
    if request.node.get_closest_marker("gpu") is None:
        return
    import torch

    if torch.cuda.is_available():
        return
    if request.config.getoption("--require-gpu"):
        pytest.fail("this test needs a CUDA device and --require-gpu was given")
    pytest.skip("needs a CUDA device")
