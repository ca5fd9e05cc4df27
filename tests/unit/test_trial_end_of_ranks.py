"""A trial on several ranks that ran out of memory: one says so, and the others that it is gone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpurun.measure.oom_kills import kernel_oom_kills, killed_for_memory
from gpurun.records.failure import FailureKind
from gpurun.rundir import write_json
from gpurun.scaling.endings import failed
from gpurun.trials.ending import failure_of
from tests.unit.knob_facts import result

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
GONE = "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1234"


@pytest.mark.parametrize(
    ("printed", "of_rank_1", "kind"),
    [
        (f"[rank1]: {OOM}\n[rank0]: {GONE}\n", "", FailureKind.OUT_OF_MEMORY),
        (f"{GONE}\n", f"Traceback (most recent call last):\n{OOM}\n", FailureKind.OUT_OF_MEMORY),
        (f"{GONE}\ngpurun: rank 1 failed first: {OOM}\n", "", FailureKind.OUT_OF_MEMORY),
        (f"{GONE}\n", "ValueError: no such layer\n", FailureKind.EXCEPTION),
    ],
)
def test_the_memory_of_any_rank_is_the_cause(
    tmp_path: Path, printed: str, of_rank_1: str, kind: FailureKind
) -> None:
    (tmp_path / "output.log").write_text(printed)
    log = tmp_path / "ranks" / "none_x" / "attempt_0" / "1" / "stderr.log"
    log.parent.mkdir(parents=True)
    log.write_text(of_rank_1)
    of_ranks = replace(result(), status="failed", ranks=2, exit_code=1)
    failure = failure_of((), tmp_path, of_ranks)
    assert failure is not None
    assert failure.kind is kind
    assert (OOM in failure.text) == (kind is FailureKind.OUT_OF_MEMORY)


@pytest.mark.parametrize(
    ("since", "status", "words"),
    [
        (None, "oom", "most likely"),
        (0, "failed", "not by the kernel for want of memory"),
        (1, "oom", "most likely"),
    ],
)
def test_a_kill_is_for_memory_unless_the_kernel_says_that_it_killed_nothing(
    tmp_path: Path, since: int | None, status: str, words: str
) -> None:
    now = kernel_oom_kills()
    if now is None:
        pytest.skip("this kernel does not count")
    before = None if since is None else now - since
    write_json(tmp_path / "spec.json", {"kernel_oom_kills": before})
    killed = failure_of((), tmp_path, replace(result(), status="killed", exit_code=137))
    assert killed is not None
    assert (killed.kind is FailureKind.OUT_OF_MEMORY) == (status == "oom")
    assert (killed.kind is FailureKind.KILLED) == (status != "oom")
    assert failed(tmp_path, 137)[0] == "oom"  # of another host, which was not asked
    (tmp_path / "output.log").write_text(
        "gpurun: rank 1 failed first: signal SIGKILL (process 7)\n"
    )
    found, why = failed(tmp_path, 137)
    assert (found, words in why) == (status, True)


def test_a_count_that_is_missing_or_broken_proves_nothing(tmp_path: Path) -> None:
    vmstat = tmp_path / "vmstat"
    assert kernel_oom_kills(vmstat) is None
    vmstat.write_text("nr_free_pages 3\noom_kill 7\nswap_ra 0\n")
    assert kernel_oom_kills(vmstat) == 7
    assert killed_for_memory(tmp_path, vmstat) is None
    (tmp_path / "spec.json").write_text('{"kernel_oom_kills": 6')
    assert killed_for_memory(tmp_path, vmstat) is None
    (tmp_path / "spec.json").write_text('{"kernel_oom_kills": 6}')
    assert killed_for_memory(tmp_path, vmstat) is True


def test_one_process_fails_of_what_it_says_last(tmp_path: Path) -> None:
    """It may have caught the first, and tried a smaller batch."""
    (tmp_path / "output.log").write_text(f"{OOM}\nValueError: no such layer\n")
    alone = failure_of((), tmp_path, replace(result(), status="failed", exit_code=1))
    assert alone is not None
    assert (alone.kind, alone.text) == (FailureKind.EXCEPTION, "ValueError: no such layer")
