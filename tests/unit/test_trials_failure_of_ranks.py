"""A trial on several ranks that ran out of memory: one says so, and the others that it is gone."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from gpurun.measure.kernel_facts import kernel_oom_kills, killed_for_memory
from gpurun.records.failure import Failure, FailureKind
from gpurun.rundir import write_json
from gpurun.trials.failure_cause import failure_of, printed
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
    log_of(1, tmp_path).write_text(of_rank_1)
    of_ranks = replace(result(), status="failed", ranks=2, exit_code=1)
    found = failure_of((), tmp_path, of_ranks)
    assert found is not None
    assert found.kind is kind
    assert (OOM in found.text) == (kind is FailureKind.OUT_OF_MEMORY)


def log_of(rank: int, run_dir: Path) -> Path:
    log = run_dir / "ranks" / "none_x" / "attempt_0" / str(rank) / "stderr.log"
    log.parent.mkdir(parents=True)
    return log


def said(run: Path, rank: int, text: str, order: int = 1) -> None:
    """What a rank wrote to stderr; `order`: which of them fell silent first."""
    log = log_of(rank, run)
    log.write_text(text)
    os.utime(log, ns=(order * 10**9, order * 10**9))


def failure(run: Path, exit_code: int) -> Failure:
    status = "killed" if exit_code > 128 else "failed"
    found = failure_of((), run, replace(result(), status=status, ranks=2, exit_code=exit_code))
    assert found is not None
    return found


def test_out_of_memory_is_the_cause_whatever_the_others_print(tmp_path: Path) -> None:
    said(tmp_path, 0, f"{GONE}\n", order=1)
    said(tmp_path, 1, f"[rank1]: {OOM}\n", order=2)
    found = failure(tmp_path, 1)
    assert (found.kind, found.rank) == (FailureKind.OUT_OF_MEMORY, 1)
    assert found.text == "out of memory on rank 1"


def test_the_rank_that_failed_first_is_the_cause(tmp_path: Path) -> None:
    said(tmp_path, 0, f"{GONE}\n", order=2)
    said(tmp_path, 1, "[rank1]: Traceback\n[rank1]: ValueError: bad batch\n", order=1)
    found = failure(tmp_path, 1)
    assert (found.kind, found.rank) == (FailureKind.EXCEPTION, 1)
    assert found.text == "rank 1: ValueError: bad batch"
    assert printed(tmp_path)[-1] == "ValueError: bad batch"


def test_a_killed_rank_is_named_and_not_by_a_process_of_the_box(tmp_path: Path) -> None:
    said(tmp_path, 0, "")
    told = "gpurun: rank 1 failed first: signal SIGKILL (process 7)\n"
    (tmp_path / "output.log").write_text(told)
    assert "rank 1 was killed (SIGKILL)" in failure(tmp_path, 137).text
    assert printed(tmp_path) == ("rank 1 failed first: signal SIGKILL",)


def test_a_rank_that_crashes_is_named_with_the_signal(tmp_path: Path) -> None:
    said(tmp_path, 0, f"{GONE}\n", order=1)
    said(tmp_path, 1, "", order=2)
    told = "gpurun: rank 1 failed first: signal SIGSEGV (process 7)\n"
    (tmp_path / "output.log").write_text(told)
    found = failure(tmp_path, 139)
    assert (found.kind, found.rank) == (FailureKind.SIGNAL, 1)
    assert found.text == "rank 1 was ended by SIGSEGV"


def test_a_rank_that_exits_without_a_word_is_told_by_its_agent(tmp_path: Path) -> None:
    said(tmp_path, 0, "")
    (tmp_path / "output.log").write_text("gpurun: rank 1 failed first: exit code 7 (process 9)\n")
    found = failure(tmp_path, 7)
    assert (found.kind, found.text) == (
        FailureKind.EXIT_CODE,
        "rank 1 failed first: exit code 7",
    )


@pytest.mark.parametrize(
    ("since", "status", "words"),
    [
        (None, "oom", "most likely"),
        (0, "failed", "not by the kernel for lack of memory"),
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
    said(tmp_path, 0, "")
    elsewhere = failure(tmp_path, 137)  # of another host, which was not asked
    assert (elsewhere.kind, elsewhere.rank) == (FailureKind.OUT_OF_MEMORY, None)
    (tmp_path / "output.log").write_text(
        "gpurun: rank 1 failed first: signal SIGKILL (process 7)\n"
    )
    here = failure(tmp_path, 137)
    assert (here.kind, here.rank, words in here.text) == (killed.kind, 1, True)


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
