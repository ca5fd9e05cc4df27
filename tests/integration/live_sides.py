"""Sides of live pairs as tests launch them: real processes in sandboxes, on the real files."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, closing
from pathlib import Path

from gpurun.isolation.isolation_mode import Mode
from gpurun.isolation.sandbox import LaunchSpec, Sandbox
from gpurun.launch.launch_command import child_environment
from gpurun.pairs.side import Side
from gpurun.records.codec import to_json
from gpurun.records.spec import RunSpec
from gpurun.rundir import write_json
from gpurun.trials.turn_fifos import make_fifos

# Plain gradient descent: torch's optimizers take seconds to import.
SCRIPT = """
import sys, time, torch
from torch.utils.data import DataLoader, TensorDataset

class Slow(TensorDataset):
    def __getitem__(self, index):
        return super().__getitem__(index)

def main(workers, seconds, steps):
    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 2)
    loader = DataLoader(Slow(torch.randn(4096, 8)), batch_size=8, num_workers=workers)
    done = 0
    while True:
        for (x,) in loader:
            time.sleep(seconds)
            model(x).square().mean().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.01 * parameter.grad
                    parameter.grad = None
            done += 1
            if done == steps:
                sys.exit(7)

if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
"""
PATIENCE_SECONDS = 60.0


class Sides:
    """Launches sides below a folder and ends them with the test."""

    def __init__(self, folder: Path, environment: dict[str, str], stack: ExitStack) -> None:
        self._folder, self._environment, self._stack = folder, environment, stack
        self.sandboxes: list[Sandbox] = []
        (folder / "train.py").write_text(SCRIPT)

    def launch(self, name: str, seconds: float = 0.0, workers: int = 0, steps: int = -1) -> Side:
        """The script above, a step of so many seconds, ending after so many steps."""
        return self.run(name, "train.py", str(workers), str(seconds), str(steps))

    def run(self, name: str, *words: str, patience: float = PATIENCE_SECONDS) -> Side:
        """Any script of the folder."""
        sandbox = start(self._folder, self._folder / name, words, self._environment)
        self.sandboxes.append(self._stack.enter_context(sandbox))
        side = Side(name, sandbox, self._folder / name / "control", patience)
        return self._stack.enter_context(closing(side))


def start(
    folder: Path, run_dir: Path, words: tuple[str, ...], environment: dict[str, str]
) -> Sandbox:
    """Start a script as a side that is ready after ten steps."""
    make_fifos(run_dir / "control")
    spec = RunSpec(str(run_dir), os.getpid(), turns_after_steps=10)
    write_json(run_dir / "spec.json", to_json(spec))
    order = LaunchSpec(
        argv=(sys.executable, *words),
        env=child_environment(run_dir / "spec.json", environment),
        cwd=folder,
        writable=(),
        layers=(),
        mode=Mode.IN_PLACE,
        log=run_dir / "output.log",
    )
    return Sandbox(order)


def state(pid: int) -> str:
    """The letter by which /proc tells a process's state; T: stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
