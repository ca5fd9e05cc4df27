"""The process of `tests/forked.py` that forks: it has imported torch, and used nothing of it.

A fork becomes a script, as python's start-up with our hook would make it one (`forked_scripts.py`),
or gpurun's launcher (`forked_launchers.py`).
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from tests.forked_launchers import guard_sandbox, launch
from tests.forked_scripts import end, run_script, stop_measuring

IMPORTED = ("torch", "torch._dynamo", "torch.utils.data")
LAUNCHER = (
    "gpurun.cli", "gpurun.commands.run", "gpurun.commands.optimize",
    "gpurun.isolation.sandbox_supervisor",
)  # fmt: skip
"""What launchers import; imported before the first one is forked."""


def serve() -> dict[str, Any]:
    """Fork a child for each order on stdin and tell its exit code; in the child, its order."""
    for name in IMPORTED:
        importlib.import_module(name)
    handed_over = socket.socket(fileno=int(sys.argv[1]))
    for line in sys.stdin:
        order: dict[str, Any] = json.loads(line)
        for name in LAUNCHER if {"gpurun", "sandbox"} & order.keys() else ():
            importlib.import_module(name)
        if "sandbox" in order:
            _, order["descriptors"], _, _ = socket.recv_fds(handed_over, 1, 4)
        child = os.fork()
        if child == 0:
            return order
        if "sandbox" in order:
            for descriptor in order["descriptors"]:
                os.close(descriptor)
            os.waitpid(child, 0)
            continue
        end = time.monotonic() + order["timeout"]
        ended, status = os.waitpid(child, os.WNOHANG)
        while not ended and time.monotonic() < end:
            time.sleep(0.005)
            ended, status = os.waitpid(child, os.WNOHANG)
        if not ended:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
        print(json.dumps(os.waitstatus_to_exitcode(status) if ended else None), flush=True)
    os._exit(0)  # the tests are over


def obey(order: Mapping[str, Any]) -> NoReturn:
    """Carry out an order, and end."""
    if "sandbox" in order:
        guard_sandbox(order["sandbox"], order["descriptors"])
    os.setpgid(0, 0)
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    for number, name in enumerate(("in", "out", "err")):
        path = os.devnull if name == "in" else os.path.join(order["outputs"], name)
        flags = os.O_RDONLY if name == "in" else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        os.dup2(os.open(path, flags), number)
    if not order["measure"]:
        stop_measuring()
    if "gpurun" in order:
        end(lambda: launch(order["gpurun"]))
    if order["spec"] is not None:
        from gpurun.launch.launch_command import child_environment

        os.environ.update(child_environment(Path(order["spec"]), os.environ))
    run_script(order["words"])


if __name__ == "__main__":
    obey(serve())
