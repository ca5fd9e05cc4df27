"""A PostgreSQL server of the tests' own, run by an ordinary user, out of reach from elsewhere."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.integration.isolation_launcher import open_folder
from tests.integration.launched import DEADLINE_SECONDS

USER = "ada"
PASSWORD = "s3cret-word"
UNPRIVILEGED = ("postgres", "nobody", "daemon")
"""Who may run the server where the tests are root's: it refuses to be."""


@dataclass
class Server:
    """A server whose user `ada` needs a password on the loopback and none on its socket."""

    binaries: Path
    folder: Path
    port: int
    owner: str | None

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def url(self, database: str, password: str = PASSWORD) -> str:
        return f"postgresql://{USER}:{password}@127.0.0.1:{self.port}/{database}"

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[object, ...]]:
        import psycopg

        words = f"host={self.folder} port={self.port} user={USER} dbname={database}"
        with psycopg.connect(words, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def start(self) -> None:
        options = ["-p", str(self.port), "-k", str(self.folder), "-h", "127.0.0.1"]
        settings = ["-c", "fsync=off", "-c", "shared_buffers=8MB", "-c", "max_connections=20"]
        self._process = self._popen("postgres", "-D", str(self.data), *options, *settings)
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            try:
                self.execute("SELECT 1")
                return
            except Exception:
                log = (self.folder / "log").read_text()
                assert self._process.poll() is None, log
                assert time.monotonic() < deadline, log
                time.sleep(0.05)

    def stop(self) -> None:
        """End it at once; what was committed is there when it is started again."""
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(DEADLINE_SECONDS)

    def create(self) -> None:
        secret = self.folder / "secret"
        secret.write_text(PASSWORD)
        if self.owner:
            for path in (self.folder, secret):
                shutil.chown(path, self.owner, pwd.getpwnam(self.owner).pw_gid)
        words = ["-U", USER, "--auth-local=trust", "--auth-host=scram-sha-256", "--no-sync"]
        words += ["--encoding=UTF8", "--locale=C", "--no-instructions", f"--pwfile={secret}"]
        made = self._popen("initdb", "-D", str(self.data), *words)
        assert made.wait(DEADLINE_SECONDS) == 0, (self.folder / "log").read_text()

    def _popen(self, program: str, *words: str) -> subprocess.Popen[bytes]:
        owner = pwd.getpwnam(self.owner) if self.owner else None
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [str(self.binaries / program), *words],
                user=owner.pw_uid if owner else None,
                group=owner.pw_gid if owner else None,
                extra_groups=[] if owner else None,
                cwd=self.folder,
                env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )


def binaries() -> Path | None:
    """The folder of `postgres` and `initdb`; Debian keeps them off the PATH."""
    named = shutil.which("initdb")
    folders = [Path(named).parent] if named else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    both = (f for f in folders if all((f / n).exists() for n in ("initdb", "postgres")))
    return next(both, None)


@contextmanager
def running(binaries: Path) -> Iterator[Server]:
    """A fresh server, ended with all that it holds."""
    owner = None
    if os.getuid() == 0:
        known = {entry.pw_name for entry in pwd.getpwall()}
        owner = next(name for name in UNPRIVILEGED if name in known)
    with open_folder() as folder:
        server = Server(binaries, folder, free_port(), owner)
        server.create()
        server.start()
        try:
            yield server
        finally:
            server.stop()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
