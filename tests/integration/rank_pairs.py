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
from gpurun.arguments.options import Target, TargetKind
from gpurun.isolation.rank_command import layered_target
os.chdir(sys.argv[1])
target = Target(TargetKind.COMMAND, sys.argv[3], tuple(sys.argv[4:]))
target = layered_target(target, Path(sys.argv[2]))
print(json.dumps([target.path, *target.args]))
"""
AVAILABLE = """
import json, os, sys
from gpurun.isolation.rank_command import available
os.chdir(sys.argv[1])
print(json.dumps(available()))
"""
REMOVE = """
import json, sys, tempfile
from pathlib import Path
from gpurun.isolation import rank_command
run = Path(sys.argv[1])
rank_command.remove_layers(run)
places = ("/var/tmp", tempfile.gettempdir())
print(json.dumps([str(x) for p in places for x in Path(p).glob(rank_command._prefix(run) + "*")]))
"""

OBEDIENT = """
import os, shutil, sqlite3, subprocess, sys
from pathlib import Path
from gpurun.runtime.trial import folder_renames
if os.environ["RANK"] != "0":
    folder_renames.install()
def put(path, text): Path(path).write_text(text)
def get(path): return Path(path).read_text() if os.path.exists(path) else None
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
        """Whether the layers of the run are gone once the launcher removes them."""
        return self.asks(REMOVE, str(self.run)) == []


@contextlib.contextmanager
def pair(user: User, cwd: Path) -> Iterator[tuple[Rank, Rank]]:
    """Rank 0 and rank 1 of an obedient script in `cwd`."""
    ranks = Ranks(user, cwd, user.python, "-B", "-c", OBEDIENT)
    both = Rank(ranks.start(0)), Rank(ranks.start(1))
    try:
        yield both
        assert [rank.ends() for rank in both] == [0, 0]
    finally:
        for rank in both:
            rank.process.kill()
        assert ranks.leave_nothing()
