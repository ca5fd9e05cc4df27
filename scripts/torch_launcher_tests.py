"""PyTorch's own tests of torchrun, run with gpurun in its place.

    python scripts/torch_launcher_tests.py PATH_OF_A_PYTORCH_CHECKOUT [name of a test ...]

The tests (`test/distributed/launcher/test_run.py` there) call `torch.distributed.run.main` and
expect its exceptions. Here that function calls `gpurun.main`, the command's own entry point, in the
process of the tests, since they replace parts of torch in it. gpurun ends with a code where
torchrun raises, so the code is turned into what torchrun would have raised: 2 into `ValueError`,
70 (an error inside the launcher) into the one that was raised there, others into
`ChildFailedError`.

The checkout is only read. Needs `expecttest`, as torch's test library does. Exit code 0 if every
test that launches something passes or is skipped by PyTorch itself.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import tempfile
import unittest
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from unittest import mock

import gpurun
from gpurun import cli
from gpurun.errors import ExitCode

TESTS = Path("test", "distributed", "launcher", "test_run.py")


class Launcher:
    """gpurun in torchrun's clothes. `launches`: how often it was called."""

    def __init__(self) -> None:
        self.launches = 0

    def __call__(self, words: Sequence[str]) -> None:
        self.launches += 1
        inside: list[Exception] = []

        def internal(error: Exception) -> int:
            inside.append(error)
            return int(ExitCode.INTERNAL)

        with mock.patch.object(cli, "_internal", internal):
            code = gpurun.main(["--quiet", *words])
        if inside:
            raise inside[0]
        if code == ExitCode.USAGE:
            raise ValueError(f"gpurun {' '.join(words)} ended with code {code}")
        if code:
            raise failed(code)


class Results(unittest.TextTestResult):
    """Results with, for each test that launches something, whether it passed."""

    launcher = Launcher()

    def startTest(self, test: unittest.TestCase) -> None:
        self.passes: set[str] = getattr(self, "passes", set())
        self.launching: set[str] = getattr(self, "launching", set())
        self.launcher.launches = 0
        super().startTest(test)

    def addSuccess(self, test: unittest.TestCase) -> None:
        self.passes.add(test.id())
        super().addSuccess(test)

    def stopTest(self, test: unittest.TestCase) -> None:
        if self.launcher.launches:
            self.launching.add(test.id())
        super().stopTest(test)


def main() -> int:
    """Run the tests and say how many of those that launch something pass."""
    parser = argparse.ArgumentParser(description="PyTorch's tests of torchrun, on gpurun")
    parser.add_argument("checkout", type=Path)
    parser.add_argument("names", nargs="*", help="tests to run (default: all)")
    arguments = parser.parse_args()
    tests = load(arguments.checkout / TESTS)
    loader = unittest.TestLoader()
    loader.testNamePatterns = [f"*.{name}" for name in arguments.names] or None
    with tempfile.TemporaryDirectory(prefix="gpurun-launcher-tests-") as home:
        os.environ["GPURUN_HOME"] = home
        with mock.patch("torch.distributed.run.main", Results.launcher):
            runner = unittest.TextTestRunner(resultclass=Results, verbosity=2)
            results = runner.run(loader.loadTestsFromModule(tests))
    return report(results)


def report(results: Results) -> int:
    """One line a test that does not pass, and the counts."""
    for test, why in results.skipped:
        print(f"skipped by PyTorch: {test.id()}: {why}")
    wrong = sorted(results.launching - results.passes)
    for name in wrong:
        print(f"does not pass: {name}")
    passed = len(results.launching & results.passes)
    print(
        f"{passed} of {len(results.launching)} tests that launch something pass; "
        f"{len(results.skipped)} skipped, {len(results.passes - results.launching)} others pass"
    )
    return int(bool(wrong) or not results.launching)


def load(path: Path) -> ModuleType:
    """The module of tests, by a name under which processes that it starts find it."""
    if not path.is_file():
        sys.exit(f"{path} is not there: name a checkout of PyTorch")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def failed(code: int) -> Exception:
    """What torchrun raises where a rank ended with this code."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

    return ChildFailedError("", {0: ProcessFailure(0, 0, code, "")})


if __name__ == "__main__":
    sys.exit(main())
