"""A running trial, from the launcher's side: start, end, what it has written so far."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gpurun.errors import ExitCode, GpurunError, cure_of
from gpurun.isolation import quiet_services
from gpurun.isolation.folder_removal import discard, hold, new_scratch
from gpurun.isolation.isolation_mode import MEMORY, ROOT, UPPERS, Mode, SupervisorSpec
from gpurun.isolation.kill_orphans import parent_of
from gpurun.isolation.pseudo_terminal import PseudoTerminal
from gpurun.isolation.working_copy import WorkingCopy, copy_written
from gpurun.launch.exit_code import exit_code_of
from gpurun.records.codec import to_json

SETUP_SECONDS = 120.0
KILL_SECONDS = 30.0
SCRATCH = "gpurun-sandbox-"
_SUPERVISOR = (
    "import sys; sys.path.insert(0, {!r}); "
    "from gpurun.isolation.sandbox_supervisor import main; main()"
)


@dataclass(frozen=True)
class LaunchSpec:
    """A program to run in a sandbox. `env` is the whole environment.

    `writable`: existing folders kept read-write at the same path (the trial's run folder, shared
    caches). `layers`: folders captured by earlier sandboxes, later ones on top. `log` receives the
    trial's output. `scratch`: the folder in which writes are kept meanwhile, None to choose one.
    """

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: Path
    writable: tuple[Path, ...]
    layers: tuple[Path, ...]
    mode: Mode
    log: Path
    scratch: Path | None = None


class Sandbox:
    """A running trial. It starts at once; `GpurunError` says which call failed if it cannot.

    `pid` is the script's process, as the launcher sees it, and `adopter` its parent, which gets its
    orphans. `notes` says what is not isolated quite as it should be, one clause each. `cwd` is
    where the script runs (a copy under Landlock).
    """

    def __init__(self, spec: LaunchSpec) -> None:
        self.spec = spec
        self.notes: list[str] = []
        self.pid = 0
        self.adopter: int | None = None
        self._code: int | None = None
        self._copy: WorkingCopy | None = None
        self._terminal: PseudoTerminal | None = None
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._scratch = _make_scratch(spec)
        self._held = hold(self._scratch)
        self.cwd = Path(os.path.realpath(spec.cwd))
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def poll(self) -> int | None:
        """The script's exit code, 128+n for a signal; None while it runs."""
        if self._code is None and self._supervisor is not None:
            code = self._supervisor.poll()
            if code is not None:
                self._ended(code)
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; `subprocess.TimeoutExpired` after `timeout` seconds."""
        if self._code is None and self._supervisor is not None:
            self._ended(self._supervisor.wait(timeout))
        assert self._code is not None
        return self._code

    def kill(self) -> None:
        """End everything in the sandbox, whatever it ignores and wherever it hid. Always returns.

        A process that the kernel itself cannot end (stuck in a driver) is given up after a while.
        """
        if self._supervisor is None or self.poll() is not None:
            return
        assert self._supervisor.stdin is not None
        try:
            self._supervisor.stdin.write(b"k\n")  # ends a line that it may still be reading
            self._supervisor.stdin.flush()
        except BrokenPipeError:  # it is ending by itself
            pass
        try:
            self._ended(self._supervisor.wait(KILL_SECONDS))
        except subprocess.TimeoutExpired:
            self._supervisor.kill()
            self._ended(128 + signal.SIGKILL)

    def capture_layer(self, dest: Path) -> int:
        """Copy what the script has written so far to `dest`; the bytes copied.

        To be called while the script is held. New and changed files count, deletions do not.
        """
        if self._copy is not None:
            return self._copy.written(dest)
        if self.spec.mode is Mode.IN_PLACE or self._supervisor is None:
            return 0
        # What is in memory is mounted in the supervisor's namespace only.
        inside = Path(f"/proc/{self._supervisor.pid}/root{self._scratch}/{MEMORY}")
        total = 0
        for layer in self.spec.layers:
            copy_written(layer, dest)
        for place in (self._scratch, inside):
            for upper in sorted((place / UPPERS).glob("*/upper")):
                total += copy_written(upper, dest)
        return total

    def close(self) -> None:
        """Kill, and remove what was written."""
        self.kill()
        if self._supervisor is not None and self._supervisor.stdin is not None:
            try:
                self._supervisor.stdin.close()
            except BrokenPipeError:
                pass
        if self._terminal is not None:
            self._terminal.finish()
        discard(self._scratch)
        if self._held >= 0:
            os.close(self._held)
            self._held = -1

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        for name in (MEMORY, ROOT, UPPERS):
            (self._scratch / name).mkdir()
        self._terminal = PseudoTerminal(self.spec.log)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            spec = self._supervisor_spec(self._terminal.slave, theirs.fileno())
            self._supervisor = _start_supervisor(spec)
            theirs.close()
            self._terminal.start()
            self._await_start(ours)

    def _supervisor_spec(self, terminal: int, report: int) -> SupervisorSpec:
        spec, cwd, env = self.spec, self.cwd, dict(self.spec.env)
        argv = spec.argv
        writable = tuple(Path(os.path.realpath(path)) for path in spec.writable)
        if spec.mode is Mode.LANDLOCK:
            home = Path(env.get("HOME", "/"))
            self._copy = WorkingCopy(cwd, self._scratch, spec.layers, home)
            self.cwd = self._copy.cwd
            argv = tuple(self._copy.moved(word, writable) for word in argv)
            env = self._copy.environment(env, writable)
        mlflow = env.get("MLFLOW_TRACKING_URI")
        if spec.mode is not Mode.OVERLAY and mlflow == quiet_services.MLFLOW:
            env["MLFLOW_TRACKING_URI"] = f"file://{self._scratch}/mlruns"
        return SupervisorSpec(
            mode=spec.mode,
            argv=argv,
            env=env,
            cwd=str(self.cwd),
            writable=tuple(str(path) for path in writable),
            layers=tuple(os.path.realpath(layer) for layer in spec.layers),
            familiar=familiar_folders(cwd, argv, env),
            scratch=str(self._scratch),
            terminal=terminal,
            report=report,
        )

    def _await_start(self, report: socket.socket) -> None:
        """Read the report to its end, which comes when the script's process becomes the script."""
        report.settimeout(SETUP_SECONDS)
        text, started = b"", False
        try:
            while True:
                block, ancillary, _, _ = report.recvmsg(4096, socket.CMSG_SPACE(12))
                if not block:
                    break
                text += block
                if b"start" in block.splitlines():  # an error may have come right behind it
                    started = True
                    self.pid = struct.unpack("3i", ancillary[0][2])[0]
                    self.adopter = parent_of(self.pid)
        except TimeoutError:
            text += b"error no answer from the sandbox\n"
        for line in text.decode(errors="replace").splitlines():
            word, _, rest = line.partition(" ")
            if word == "note":
                self.notes.append(rest)
            elif word == "error":
                raise self._failure(rest, started)
        if not started:
            raise self._failure("its process ended", started)

    def _failure(self, detail: str, started: bool) -> GpurunError:
        if started:
            what = f"the trial's program could not be started: {detail}"
            return GpurunError(what, "check the command")
        what = f"the isolated trial could not be set up: {detail}"
        in_place = "use --trials-in-place to run trials on the real files"
        return GpurunError(what, cure_of(detail, in_place))

    def _ended(self, code: int) -> None:
        self._code = exit_code_of(code)
        if self._terminal is not None:
            self._terminal.finish()


def _start_supervisor(spec: SupervisorSpec) -> subprocess.Popen[bytes]:
    """Start the supervisor and hand the spec over to it."""
    supervisor = _supervisor_process(spec)
    assert supervisor.stdin is not None
    try:
        supervisor.stdin.write(json.dumps(to_json(spec)).encode() + b"\n")
        supervisor.stdin.flush()
    except BrokenPipeError:  # the report says why
        pass
    return supervisor


def _supervisor_process(spec: SupervisorSpec) -> subprocess.Popen[bytes]:
    package_root = str(Path(__file__).resolve().parents[2])
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _SUPERVISOR.format(package_root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(spec.terminal, spec.report),
        start_new_session=True,
        cwd="/",
    )


def _make_scratch(spec: LaunchSpec) -> Path:
    places = [spec.scratch] if spec.scratch else [Path("/var/tmp"), Path(tempfile.gettempdir())]
    for place in places:
        try:
            return new_scratch(place, SCRATCH)
        except OSError:
            continue
    raise GpurunError(
        f"no room for the files of trials: {places[-1]} is not writable",
        "set TMPDIR to a folder that can",
        ExitCode.USAGE,
    )


def familiar_folders(cwd: Path, argv: tuple[str, ...], env: dict[str, str]) -> tuple[str, ...]:
    """Folders in which the script is likely to write; `overlay_root` takes special care of them."""
    named = [env.get(name, "") for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME", "HF_HOME")]
    named += [part for word in argv for part in (word, word.partition("=")[2])]
    paths = {str(cwd), "/tmp", "/var/tmp"}
    for word in named:
        if word.startswith("/"):
            path = os.path.realpath(word)
            paths.add(path if os.path.isdir(path) else os.path.dirname(path))
    return tuple(sorted(paths))
