"""Kill a random process of a random command at a random moment, and see what stays behind.

    python scripts/kill_random.py [--kills 100] [--seed N] [--only WORD]

The commands are run, tune, compare, ddp and profile, on a small script with loader workers. SIGKILL
hits the launcher, or a process below it: a trial, a worker, a rank, the parent of a sandbox. Then:

* no process of the command is left, frozen ones included;
* its scratch folders below /var/tmp and TMPDIR are gone, and nothing is mounted there (folders
  `gpurun-probe-*` and `gpurun-rank-*` may stay, of a launcher that was killed while it tried the
  isolation, or had ranks: one that does so more than a minute later removes them);
* every JSON document below `.gpurun/` is whole;
* after each fourth kill, the same command runs to its end, and only its own leftovers remain (and
  half-written files that were younger than a minute when it began).

`kill_launchers.py` does the same to one live pair, more often and at finer moments.
Prints each fault, and exits with 1 if there was any. On a machine whose processors others use, a
command that only gets no time reads as one that hangs: run it on a quiet one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
STAY = ("gpurun-probe-", "gpurun-rank-")
GONE_SECONDS = 40.0
END_SECONDS = 400.0
LATEST_SECONDS = 25.0
"""Few commands take longer here, and one that has ended by itself is not killed."""
BELOW = 0.7
"""The share of kills that hit a process below the launcher, where there is one."""
CHAIN = 4
"""So many kills in one folder before a run to the end."""
OLD_SECONDS = 60.0
"""Half-written files that are younger may be a living process's: nothing removes them."""
MARK = "GPURUN_KILL_RANDOM"
TRAINING = """
import time, torch
from torch.utils.data import DataLoader, Dataset
torch.set_num_threads(1)
torch.manual_seed(0)

class Slow(Dataset):
    def __len__(self):
        return 640
    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.full((8,), float(index)), index % 2

def main():
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(2):
        for x, y in DataLoader(Slow(), batch_size=8, shuffle=True, num_workers=2):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    torch.save(model.state_dict(), "model.pt")

if __name__ == "__main__":
    main()
"""
COMMANDS = {
    "run": ("train.py",),
    "tune": ("--optimize", "--tune-only", "--budget", "60s", "train.py"),
    "compare": ("bench", "--compare", "HEAD~1", "--budget", "60s", "train.py"),
    "ddp": ("--ddp", "--nproc-per-node", "2", "train.py"),
    "profile": ("profile", "train.py"),
}
ALLOWED = {"run": {0}, "tune": {0, 3}, "compare": {0, 3}, "ddp": {0}, "profile": {0}}
"""Exit codes of a command that comes to its end: 3 is no decision within its budget."""
PRIVATE = 'mount --make-rprivate / && mount --bind {0} /var/tmp && exec "$@"'


@dataclass
class Place:
    """A folder with a script in a repository of two commits, and scratch folders of its own."""

    folder: Path
    mark: str

    @property
    def work(self) -> Path:
        return self.folder / "work"

    @property
    def scratch(self) -> tuple[Path, Path]:
        return self.folder / "var-tmp", self.folder / "tmp"

    def make(self) -> None:
        for path in (self.work, *self.scratch):
            path.mkdir()
        (self.work / "train.py").write_text(TRAINING)
        (self.work / ".gitignore").write_text(".gpurun/\nmodel.pt\n")
        git = ("git", "-c", "user.name=a", "-c", "user.email=a@b")
        for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "one")):
            subprocess.run([*git, *words], cwd=self.work, check=True)
        subprocess.run(
            [*git, "commit", "-q", "--allow-empty", "-m", "two"], cwd=self.work, check=True
        )

    def start(self, command: str) -> subprocess.Popen[bytes]:
        """The command in a session and a mount namespace of its own."""
        words = [sys.executable, "-m", "gpurun", *COMMANDS[command]]
        private = ["sh", "-c", PRIVATE.format(self.scratch[0]), "sh", *words]
        kept = {k: v for k, v in os.environ.items() if not k.startswith("GPURUN_")}
        log = (self.folder / "output.txt").open("wb")
        with log:
            return subprocess.Popen(
                ["unshare", "-m", *private],
                cwd=self.work,
                env={
                    **kept,
                    MARK: self.mark,
                    "PYTHONPATH": str(REPOSITORY),
                    "TMPDIR": str(self.scratch[1]),
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def processes(self) -> dict[int, str]:
        """Every living process of the commands here, with its command line."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if f"{MARK}={self.mark}\0".encode() in (path / "environ").read_bytes():
                    line = (
                        (path / "cmdline")
                        .read_bytes()
                        .replace(b"\0", b" ")
                        .decode(errors="replace")
                    )
                    found[int(path.name)] = line[:160]
        return found

    def leftovers(self) -> list[str]:
        """Scratch folders of sandboxes and ranks, and whatever is mounted below this folder."""
        mounted = Path("/proc/self/mountinfo").read_text()
        names = [f"{path}" for place in self.scratch for path in place.iterdir() if _ours(path)]
        return [*names, *([f"mounts below {self.folder}"] if str(self.folder) in mounted else [])]


def _ours(path: Path) -> bool:
    return path.name.startswith("gpurun-") and not path.name.startswith(STAY)


@contextmanager
def fresh_place(number: int) -> Iterator[Place]:
    """A place that is removed at the end, with all processes that are left in it."""
    folder = Path(tempfile.mkdtemp(prefix="kill-random-"))
    place = Place(folder, f"{os.getpid()}-{number}-{time.monotonic_ns()}")
    place.make()
    try:
        yield place
    finally:
        for pid in place.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
        shutil.rmtree(folder, ignore_errors=True)


def kill_once(place: Place, command: str, draws: random.Random) -> tuple[str, list[str]]:
    """Start the command and kill one process of it; who was hit, and the faults that followed."""
    launcher = place.start(command)
    time.sleep(draws.uniform(0.5, draws.choice((2.0, 8.0, LATEST_SECONDS))))
    processes = place.processes()
    wants_below = draws.random() < BELOW
    if wants_below:
        processes = _with_children(place, launcher, draws.uniform(0, 6))
    below = [pid for pid in processes if pid != launcher.pid]
    victim = draws.choice(below) if below and wants_below else launcher.pid
    who = "launcher" if victim == launcher.pid else processes.get(victim, "?")
    ended = launcher.poll() is not None
    with suppress(ProcessLookupError):
        os.kill(victim, signal.SIGKILL)
    hit = "ended before" if ended else f"{who[:100]}"
    faults = []
    try:
        launcher.wait(GONE_SECONDS if who == "launcher" else END_SECONDS)
    except subprocess.TimeoutExpired:
        faults.append(f"the launcher hangs; processes: {place.processes()}")
    faults += _left(place)
    output = (place.folder / "output.txt").read_text(errors="replace")
    if "internal error" in output or (who != "launcher" and "/gpurun/" in _last_traceback(output)):
        faults.append(f"it said: {output[-1500:]}")
    faults += half_written(place.work / ".gpurun")
    return hit, faults


def _with_children(place: Place, launcher: subprocess.Popen[bytes], later: float) -> dict[int, str]:
    """The processes, so many seconds after the launcher first had any below it."""
    deadline = time.monotonic() + LATEST_SECONDS
    while len(place.processes()) < 2 and launcher.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(later)
    return place.processes()


def _last_traceback(output: str) -> str:
    return (
        output.rpartition("Traceback (most recent call last)")[2] if "Traceback" in output else ""
    )


def _left(place: Place) -> list[str]:
    deadline = time.monotonic() + GONE_SECONDS
    while time.monotonic() < deadline:
        if not place.processes() and not place.leftovers():
            return []
        time.sleep(0.1)
    return [f"left: {place.processes()} {place.leftovers()}"]


def half_written(home: Path) -> list[str]:
    """Documents that cannot be read."""
    faults = []
    for path in home.rglob("*.json"):
        if "worktrees" in path.parts or path.name.startswith("."):
            continue
        try:
            json.loads(path.read_text())
        except ValueError as error:
            faults.append(f"{path.relative_to(home)} is half-written: {error}")
        except OSError:
            continue
    return faults


def run_to_the_end(place: Place, command: str) -> list[str]:
    """The same command works in this folder, and what the killed ones left is gone."""
    young = time.time() - OLD_SECONDS
    launcher = place.start(command)
    try:
        code = launcher.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        return [f"the next {command} hangs: {place.processes()}"]
    output = (place.folder / "output.txt").read_text(errors="replace")
    faults = [] if code in ALLOWED[command] else [f"the next {command}: {code} {output[-1500:]}"]
    home = place.work / ".gpurun"
    hidden = (p for p in home.rglob(".*.*") if p.name != ".gitignore")
    drafts = [str(p.relative_to(home)) for p in hidden if p.stat().st_mtime < young]
    trees = list((home / "worktrees").glob("2*"))
    if drafts or trees:
        faults.append(f"not cleaned below .gpurun: {drafts} {trees}")
    return faults + _left(place)


def main() -> None:
    """Kill so many, and print what was hit and what was left."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--only", default="", help="a command")
    asked = parser.parse_args()
    draws, hits, faults = random.Random(asked.seed), Counter[str](), 0
    names = [name for name in COMMANDS if asked.only in name]
    for chain in range(-(-asked.kills // CHAIN)):
        command = names[chain % len(names)]
        with fresh_place(chain) as place:
            for _ in range(CHAIN):
                hit, found = kill_once(place, command, draws)
                hits[f"{command}: {hit.split(' ')[0] if hit == 'launcher' else hit[:60]}"] += 1
                print(f"{command}: {hit}: {found or 'clean'}", flush=True)
                faults += bool(found)
            found = run_to_the_end(place, command)
            print(f"{command}: the next one: {found or 'works'}", flush=True)
            faults += bool(found)
    for hit, count in sorted(hits.items()):
        print(f"{count:4} {hit}")
    print(f"{sum(hits.values())} kills, faults: {faults}")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
