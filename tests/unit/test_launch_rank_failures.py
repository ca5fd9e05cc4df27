"""Of ranks that failed together the first cause is named, with its reason."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpurun.launch.attempt_log import failures_of, first_cause_first
from gpurun.records.failure import RankFailure


def found(code: int, local_rank: int, message: Any = "<NONE>", at: int = 100) -> Any:
    """What torch's agent says of a rank that it found dead."""
    return SimpleNamespace(
        local_rank=local_rank,
        pid=500 + local_rank,
        exitcode=code,
        error_file_data={"message": message},
        timestamp=at,
    )


def say(run_dir: Path, rank: int, nanoseconds: int, error: str | None) -> None:
    """A rank's exit record, as its process leaves it."""
    fields = {"event": "exit_record", "unix_time_ns": nanoseconds, "error": error}
    text = json.dumps(fields, separators=(",", ":")) + "\n"
    (run_dir / f"events-rank{rank}-{500 + rank}.jsonl").write_text('{"event":"process"}\n' + text)


def test_the_rank_that_ended_first_is_first_though_the_agent_found_it_last(tmp_path: Path) -> None:
    say(tmp_path, 0, 2_000, "RuntimeError: Connection closed by peer")
    say(tmp_path, 1, 1_000, "ValueError: bad sample 17")
    first, second = failures_of({0: found(1, 0), 1: found(1, 1)}, tmp_path, {1: "1/stderr.log"})
    assert (first.rank, first.error, first.log) == (1, "ValueError: bad sample 17", "1/stderr.log")
    assert first.how == "exit code 1 (process 501): ValueError: bad sample 17"
    assert (second.rank, second.log) == (0, None)


def test_a_rank_that_was_killed_comes_before_those_that_lost_it(tmp_path: Path) -> None:
    say(tmp_path, 0, 1_000, "RuntimeError: Connection reset by peer")
    first, _ = failures_of({0: found(1, 0), 1: found(-9, 1)}, tmp_path, {})
    assert (first.rank, first.exit_code, first.how) == (1, 137, "signal SIGKILL (process 501)")


def test_what_the_agent_itself_ended_is_no_cause() -> None:
    dead = {0: found(-9, 0, at=130), 1: found(1, 1, at=100), 2: found(-15, 2, at=100)}
    assert [failure.rank for failure in failures_of(dead, None, {})] == [1, 2, 0]


def test_the_error_file_of_record_gives_the_reason_where_there_is_no_exit_record() -> None:
    message = {"message": "KeyError: 'lr'", "extraInfo": {"timestamp": "100"}}
    (only,) = failures_of({3: found(1, 0, message)}, None, {})
    assert (only.rank, only.error) == (3, "KeyError: 'lr'")


@pytest.mark.parametrize("text", ["", '{"event":"exit_record","unix_'])
def test_a_missing_or_torn_exit_record_leaves_the_exit_code(tmp_path: Path, text: str) -> None:
    (tmp_path / "events-rank0-500.jsonl").write_text(text)
    (only,) = failures_of({0: found(7, 0)}, tmp_path, {})
    assert (only.exit_code, only.error, only.unix_time_ns) == (7, None, None)


def test_an_abort_comes_after_what_tells_its_time() -> None:
    def failure(rank: int, signal: str | None, at: int | None) -> RankFailure:
        return RankFailure(rank, rank, rank, 1, signal, None, at)

    mixed = [failure(0, "SIGABRT", None), failure(1, None, 5), failure(2, None, 3)]
    assert [f.rank for f in first_cause_first(mixed)] == [2, 1, 0]
