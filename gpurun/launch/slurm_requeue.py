"""`--requeue`: a job of SLURM that was warned goes back into the queue, and resumes there.

SLURM warns a job before its end (`#SBATCH --signal=B:USR1@300`, preemption). The script saves its
checkpoint by its own handler. When it has ended without success, gpurun asks SLURM to start the job
again; there it adds the script's own `--resume`, if that is a switch.
"""

from __future__ import annotations

import ast
import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import replace

from gpurun.arguments.options import Target, TargetKind
from gpurun.errors import GpurunError, say

WARNINGS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)
"""Signals by which a scheduler announces the end."""
RESUME = "--resume"
ANSWER_SECONDS = 20.0
"""Time for SLURM to answer, below the 30 s that it leaves a job after SIGTERM by default."""


class SlurmRequeue:
    """Hears of signals during the run, and asks SLURM at its end.

    `GpurunError` outside of a job of SLURM.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._job = environment.get("SLURM_JOB_ID", "")
        if not self._job:
            raise GpurunError(
                "--requeue is for a job of SLURM, and SLURM_JOB_ID is not set",
                "drop the flag, or submit the command with sbatch",
            )
        self._first_task = environment.get("SLURM_PROCID", "0") == "0"
        self._warned: int | None = None

    def heard(self, number: int) -> None:
        """A signal came to this launcher or to all processes of the job."""
        if number in WARNINGS:
            self._warned = number

    def conclude(self, exit_code: int) -> None:
        """Put the job back if it was warned and its script did not end with success."""
        if self._warned is None or exit_code == 0 or not self._first_task:
            return
        name = signal.Signals(self._warned).name
        try:
            done = subprocess.run(
                ["scontrol", "requeue", self._job],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=ANSWER_SECONDS,
                check=False,
            )
            why = (done.stderr.strip() or f"exit code {done.returncode}") if done.returncode else ""
        except (OSError, subprocess.TimeoutExpired) as error:
            why = str(error)
        if why:
            say(f"{name} came, but job {self._job} was not put back into the queue: {why}")
        else:
            say(f"{name} came: job {self._job} is back in SLURM's queue")


def resumed(target: Target, environment: Mapping[str, str]) -> Target:
    """The target of a job that SLURM started again, with the script's own `--resume` added."""
    if environment.get("SLURM_RESTART_COUNT", "0") == "0" or RESUME in target.args:
        return target
    if not has_resume_switch(target):
        say(f"SLURM started this job again; the script has no switch {RESUME}, so none is added")
        return target
    say(f"SLURM started this job again: {RESUME} is added to the script's arguments")
    return replace(target, args=(*target.args, RESUME))


def has_resume_switch(target: Target) -> bool:
    """True if the script's source adds an argument `--resume` that needs no value."""
    if target.kind is not TargetKind.SCRIPT:
        return False
    try:
        with open(os.fspath(target.path), "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, ValueError, SyntaxError, RecursionError):
        return False
    return any(isinstance(node, ast.Call) and _adds_switch(node) for node in ast.walk(tree))


def _adds_switch(call: ast.Call) -> bool:
    """True for `add_argument("--resume", action="store_true")` and one with `nargs="?"`."""
    if not (isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"):
        return False
    names = [one.value for one in call.args if isinstance(one, ast.Constant)]
    given = {
        one.arg: one.value.value for one in call.keywords if isinstance(one.value, ast.Constant)
    }
    needs_none = given.get("action") == "store_true" or given.get("nargs") == "?"
    optional = any(
        one.arg == "action" and ast.unparse(one.value).endswith("BooleanOptionalAction")
        for one in call.keywords
    )
    return RESUME in names and (needs_none or optional)
