"""Two ranks of one script, steered line by line by a test: the second has a private layer."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.integration.isolation_launcher import REPOSITORY, User
from tests.integration.launched import DEADLINE_SECONDS

ASK = """
import json, os, sys
from pathlib import Path
from gpurun.isolation.rank_layers.layer_command import rank_command
os.chdir(sys.argv[1])
print(json.dumps(rank_command(sys.argv[3:], Path(sys.argv[2]), ())))
"""
AVAILABLE = """
import json, os, sys
from gpurun.isolation.rank_layers.layer_command import available
os.chdir(sys.argv[1])
print(json.dumps(available()))
"""
FINISH = """
import json, sys
from pathlib import Path
from gpurun.isolation.rank_layers.layer_command import finish
print(json.dumps(finish(Path(sys.argv[1]), 60)))
"""

OBEDIENT = """
import os, shutil, sqlite3, subprocess, sys
from pathlib import Path
from gpurun.runtime.ddp.rank_files import take_over_creations
from gpurun.runtime.ddp.rank_layer import delete_tree, see_rank_zero
if os.environ["RANK"] != "0":
    take_over_creations()
def put(path, text): Path(path).write_text(text)
def get(path): return Path(path).read_text() if os.path.exists(path) else None
def replace(path, text):
    put(path + ".tmp", text)
    os.replace(path + ".tmp", path)
def remake(path):
    shutil.rmtree(path)
    os.mkdir(path)
for line in sys.stdin:
    try:
        try:
            said = eval(line)
        except SyntaxError:
            said = exec(line)
    except Exception as error:
        said = type(error).__name__
    print(repr(said), flush=True)
"""


class Rank:
    """A process that does what the test says."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def does(self, line: str) -> object:
        """The value of an expression or None for a statement; an exception's name."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, "the rank has ended"
        said: object = eval(answer)
        return said

    def meets(self) -> None:
        """What the runtime does after a collective."""
        assert self.does("see_rank_zero()") is True

    def ends(self) -> int:
        """Let the script end; its return code."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        code = self.process.wait(DEADLINE_SECONDS)
        self.process.stdout.close()
        return code


class Ranks:
    """One run of `words` in `cwd`, with a run folder below it."""

    def __init__(self, user: User, cwd: Path, *words: str) -> None:
        self.user, self.cwd = user, cwd
        self.run = cwd / "run folder"
        self.run.mkdir(exist_ok=True)
        user.give(self.run)
        self.words: list[str] = self.asks(ASK, str(cwd), str(self.run), *words)

    def set_clock_back(self, seconds: int) -> None:
        """Before the ranks start: as if the wall clock had been set back since the launch."""
        place = next(i for i, word in enumerate(self.words) if word.startswith("{"))
        order = json.loads(self.words[place])
        order["start_ns"] += seconds * 10**9
        self.words[place] = json.dumps(order)

    def move_layers(self, place: Path) -> None:
        """Before the ranks start: have their layers in this folder."""
        words = [i for i, word in enumerate(self.words) if word.startswith("{")]
        order = json.loads(self.words[words[0]])
        self.words[words[0]] = json.dumps({**order, "places": [str(place)]})

    def asks(self, code: str, *words: str) -> Any:
        """What the launcher's side answers."""
        answer, _ = self.user.start(code, *words).communicate(timeout=DEADLINE_SECONDS)
        return json.loads(answer)

    def start(self, rank: int, **options: Any) -> subprocess.Popen[str]:
        """Start one rank as the agent does."""
        entry = pwd.getpwnam(self.user.name) if self.user.name else None
        return subprocess.Popen(
            self.words,
            user=entry.pw_uid if entry else None,
            group=entry.pw_gid if entry else None,
            extra_groups=[] if entry else None,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.user.home),
                "PYTHONPATH": str(REPOSITORY),
                "PYTHONDONTWRITEBYTECODE": "1",
                "RANK": str(rank),
            },
            cwd=self.cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **options,
        )

    def leave_nothing(self) -> bool:
        """Whether the layers are gone soon after the ranks."""
        return self.asks(FINISH, str(self.run)) is True


@contextlib.contextmanager
def pair(user: User, cwd: Path, clock_back: int = 0) -> Iterator[tuple[Rank, Rank]]:
    """Rank 0 and rank 1 of an obedient script in `cwd`. `clock_back`: as `set_clock_back`."""
    ranks = Ranks(user, cwd, user.python, "-B", "-c", OBEDIENT)
    ranks.set_clock_back(clock_back)
    both = Rank(ranks.start(0)), Rank(ranks.start(1))
    try:
        yield both
        assert [rank.ends() for rank in both] == [0, 0]
    finally:
        for rank in both:
            rank.process.kill()
        assert ranks.leave_nothing()
