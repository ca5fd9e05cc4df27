"""What --dry-run says by the first trial alone."""

from __future__ import annotations

import time
from dataclasses import replace

from gpurun.knobs.api import Effect, Skip
from gpurun.tuner.phases import Phases
from gpurun.tuner.tuning_preview import PreviewInputs, preview_lines
from tests.unit.knob_facts import facts
from tests.unit.tuner_searches import compiled, data, doubtful
from tests.unit.tuner_trials import trial

MIB = 1 << 20
KNOBS = [
    compiled("second"),
    data("first", [2, 4]),
    doubtful("other", [2, 4]),
    doubtful("idle", Skip("no GPU")),
    doubtful("idler", Skip("no GPU")),
    doubtful("training", effect=Effect.TRAINING),
]
BATCHES = [{"batch_size": 64}, {"batch_size": 128}]


def told(in_turn: str = "", *more: Effect) -> list[str]:
    probe = trial(100.0, seconds=8.0)
    probe = replace(probe, record=replace(probe.record, peak_memory_bytes=300 * MIB))
    times = Phases(time.monotonic() + 600.0)
    times.baseline(probe)
    allowed = frozenset({Effect.PIPELINE, Effect.NUMERICS, *more})
    return preview_lines(PreviewInputs(KNOBS, allowed, probe, facts(), BATCHES, in_turn), times)


def test_it_says_what_would_be_tried_by_stage_and_why_the_rest_would_not() -> None:
    lines = told()
    assert lines[0] == "launched once, the script as it is: 100 samples/s, 8.00 s"
    stages = [line for line in lines if line.startswith("would try at once, ")]
    assert stages == ["would try at once, data: first 2", "would try at once, compile: second"]
    assert "would try alone, if what is found points to it: other 2, other 4" in lines
    assert "would not try idle, idler: no GPU" in lines
    assert "would not try training: training changes are not allowed" in lines


def test_a_batch_size_is_tried_if_the_proof_leaves_time_unless_it_may_be_applied() -> None:
    later = "would try batch sizes 64, 128 if the proof leaves time; to apply: --allow "
    assert later + "pipeline,numerics,training" in told()
    assert "would try batch sizes 64, 128" in told("", Effect.TRAINING)


def test_it_says_how_long_it_takes_and_with_how_much_memory() -> None:
    time_line, memory_line = told()[-2:]
    assert time_line.startswith("time: the search up to ")
    assert "then proof by live pairs and rungs, " in time_line
    assert time_line.endswith("in all; a plain launch takes 8.00 s")
    assert memory_line.startswith("memory: about 300 MiB of the main process in a trial, up to ")
    time_line, memory_line = told("the script runs in several ranks")[-2:]
    assert "launches of each side one after the other (the script runs in several ranks)" in (
        time_line
    )
    assert memory_line.endswith("one launch at a time")
