"""The ladder and the verdict of `--optimize`."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

from gpurun.records.tuning import (
    Candidate,
    GuardVerdict,
    LadderRow,
    LossCurves,
    OtherLoad,
    Rejection,
    TuningReport,
    WaitingLine,
)
from gpurun.report.tuning_verdict import verdict_sentence
from tests.unit.report_records import (
    GIB,
    LADDER,
    LARGER_BATCH,
    PROOF,
    barren_report,
    in_child,
    ladder_lines,
    trial,
    tuning_report,
)

PRINT = """
import json, sys
from pathlib import Path
from gpurun.records.codec import from_json
from gpurun.records.tuning import TuningReport
from gpurun.report.ladder import print_ladder
print_ladder(from_json(TuningReport, json.load(open(sys.argv[1]))), Path("runs/7"))
if "rich" in sys.modules:
    print("rich was imported")
"""

REJECTED = GuardVerdict(
    False,
    0.3,
    0.01,
    ("loss leaves the noise at step 2",),
    LossCurves((3.0, 2.0, 1.0), (3.0, 3.0, math.nan)),
)

VERDICTS = (
    "no_gain",
    "inconclusive",
    "too_few_steps",
    "no_training",
    "script_failed",
    "interrupted",
)


def text(report: TuningReport) -> str:
    return "\n".join(ladder_lines(report, Path("runs/7")))


def row(report: TuningReport, change: str) -> str:
    return next(line for line in ladder_lines(report) if line.strip().startswith(change))


def test_a_proven_gain_is_told_with_interval_p_value_pairs_and_loss() -> None:
    assert verdict_sentence(tuning_report()) == (
        "2.31× faster (95 % interval 2.25–2.37, p = 0.0004, 3 pairs), "
        "same training: loss within 0.4 % (noise 1.1 %)"
    )


def test_the_same_training_is_claimed_only_where_it_was_compared() -> None:
    assert verdict_sentence(tuning_report(guard=None)).endswith(", loss not compared")
    chosen = Candidate({"batch_size": 64}, 1.0, None, None, None)
    shown = verdict_sentence(tuning_report(chosen=chosen))
    assert shown.endswith("changes training (batch_size)")
    assert "same training" not in verdict_sentence(tuning_report(guard=REJECTED))


def test_the_same_outputs_are_claimed_only_where_they_were_compared() -> None:
    def ending(**fields: Any) -> str:
        guard = GuardVerdict(True, None, None, (), **fields)
        return verdict_sentence(tuning_report(guard=guard)).split("pairs), ")[1]

    assert ending() == "loss not compared"
    assert ending(compared=("samples", "gradients")) == (
        "loss not compared (compared: samples, gradients)"
    )
    compared = {"forward_only": True, "compared": ("outputs",), "output_deviation": 0.003}
    assert ending(**compared) == "same outputs: within 0.3 %"
    assert ending(**compared, output_agreement=0.998) == (
        "same outputs: within 0.3 %, 99.8 % of classes and integers agree"
    )
    assert ending(forward_only=True, outputs_not_compared="they are random") == (
        "outputs not compared: they are random"
    )


def test_what_is_not_significant_says_so() -> None:
    none = tuning_report(
        verdict="no_gain", speedup=1.007, statistically_significant=False, proof=None
    )
    assert verdict_sentence(none) == (
        "Nothing beats the script as it is (best: +0.7 %, not significant)"
    )


def test_nothing_is_said_of_changes_that_the_budget_left_untried() -> None:
    none = tuning_report(verdict="no_gain", speedup=None, untried=("tf32",))
    assert verdict_sentence(none) == (
        "Nothing that was tried beats the script as it is; the search ended before tf32 was tried; "
        "try a larger `--budget` or `--max-trials`"
    )
    more = tuning_report(verdict="no_gain", speedup=None, untried=tuple("abcde"))
    assert "ended before a, b, c and 2 more were tried" in verdict_sentence(more)


SO_FAR = (2.3, 3.3)


def test_what_the_budget_left_unproven_is_one_sentence_with_what_to_do() -> None:
    open_end = tuning_report(
        verdict="inconclusive",
        speedup=1.04,
        speedup_confidence_interval=(0.98, 1.1),
        statistically_significant=False,
        gains_so_far=SO_FAR,
    )
    again = "; a larger `--budget` has room for more pairs"
    assert verdict_sentence(open_end) == (
        "Not proven yet: the budget ended first "
        f"(so far 1.04×, 95 % interval 0.98–1.10, 3 pairs){again}"
    )
    nothing = {"speedup": None, "speedup_confidence_interval": None, "proof": None}
    one = dataclasses.replace(open_end, **nothing, gains_so_far=SO_FAR[:1])
    assert verdict_sentence(one) == (
        f"Not proven yet: the budget ended first (so far 2.30× in 1 pair){again}"
    )
    none = dataclasses.replace(one, gains_so_far=())
    assert verdict_sentence(none) == "Not proven: the budget ended first"
    why = "the budget of 20 s left no time to try anything: try `--budget 2m`"
    untried = barren_report("inconclusive", reason=why)
    assert verdict_sentence(untried) == f"Not proven: {why}"
    later = barren_report("inconclusive", decisions=("no pair", "ceilings: not measured"))
    assert verdict_sentence(later) == "Not proven: the budget ended first"


def test_an_interval_that_says_nothing_is_not_printed_anywhere() -> None:
    wide = (0.0001, 189951.0)
    proof = dataclasses.replace(
        PROOF, speedup=2.75, speedup_confidence_interval=wide, p_value=0.6, settled=False,
        statistically_significant=False, pairs=((100.0, 230.0), (100.0, 330.0)),
    )  # fmt: skip
    report = tuning_report(
        verdict="inconclusive", speedup=2.75, speedup_confidence_interval=wide, proof=proof,
        statistically_significant=False, gains_so_far=SO_FAR, larger_batch=None,
    )  # fmt: skip
    larger = dataclasses.replace(LARGER_BATCH, proof=proof)
    for told in (report, dataclasses.replace(report, larger_batch=larger)):
        assert "189" not in text(told)
        assert "0.00" not in text(told)
    assert "so far 2.30× and 3.30× in 2 pairs" in text(report)
    best = dataclasses.replace(report, verdict="no_gain", gains_so_far=())
    assert "189" not in text(best)


@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_tuning_without_figures_shows_none(verdict: str) -> None:
    report = barren_report(verdict)
    for unknown in ("None", "×", "0.0"):
        assert unknown not in text(report)


def test_a_script_that_fails_by_itself_is_quoted() -> None:
    failed = trial(1, {}, None, reason="ModuleNotFoundError: No module named 'x'")
    shown = verdict_sentence(barren_report("script_failed", trials=(failed,)))
    assert shown.endswith("nothing was tuned: ModuleNotFoundError: No module named 'x'")
    later = (trial(1, {}, 800.0), trial(2, {}, None, reason="exit code 3"))
    shown = verdict_sentence(barren_report("script_failed", trials=later))
    assert shown.endswith("nothing was tuned: exit code 3")


def test_a_row_is_a_stage_with_all_changes_above_it() -> None:
    """Merged stages stand before it; the interval is that of the step."""
    assert row(tuning_report(), "stage").split() == [
        *("stage", "samples/s", "so", "far", "step", "95", "%", "CI", "memory"),
        *("Δ", "loss", "changes"),
    ]
    assert row(tuning_report(), "script as it is").split()[4:] == ["800", "1.00", "GiB"]
    assert row(tuning_report(), "+ data, transfer").split()[3:] == [
        *("1,640", "×2.05", "×2.05", "1.78–2.36", "1.00", "GiB", "0.0", "%"),
        *("loader_workers", "8,", "host_allocator", "keep"),
    ]
    assert row(tuning_report(), "+ precision = all").split()[4:] == [
        *("1,848", "×2.31", "×1.13", "0.98–1.30", "1.00", "GiB", "0.4", "%", "tf32"),
    ]


def test_the_proof_is_a_row_with_its_interval_and_what_it_rests_on() -> None:
    proven = row(tuning_report(), "proven")
    assert proven.split()[1:3] == ["×2.31", "2.25–2.37"]
    assert proven.endswith("3 pairs, p = 0.0004, same training")
    unproven = tuning_report(verdict="inconclusive", gains_so_far=SO_FAR, larger_batch=None)
    assert not any("= all" in line or "proven  " in line for line in ladder_lines(unproven))


def test_a_larger_batch_that_was_measured_stands_below_the_proof() -> None:
    told = ladder_lines(tuning_report())
    batch = row(tuning_report(), "+ batch 256 (training)")
    assert told.index(batch) == told.index(row(tuning_report(), "proven")) + 1
    assert batch.split()[4:] == [
        *("10,000", "×12.5", "×5.40", "4.70–6.20", "8.00", "GiB", "other"),
        *LADDER[-1].reason.split(),
    ]
    unmeasured = dataclasses.replace(LADDER[-1], speedup=None, reason="out of memory")
    told = ladder_lines(tuning_report(ladder=(*LADDER[:-1], unmeasured)))
    assert "    batch_size 256 (via --batch-size): out of memory" in told


def test_changes_that_are_not_kept_are_a_list_by_reason() -> None:
    """Seen: a row of ×0.14 that was kept beside "1.29× faster", and ×1.75 where that was 1.01×."""
    again = dataclasses.replace(LADDER[4], changes={"fused_loss": "cross_entropy"})
    told = ladder_lines(tuning_report(ladder=(*LADDER, again)))
    assert "    channels_last: slower" in told
    assert "    compile default, fused_loss cross_entropy: no compiler" in told
    assert not any("0.92" in line for line in told), "no ratio of one trial"


def test_what_was_not_measured_is_blank() -> None:
    bare = tuple(LadderRow(r.stage, r.changes, r.effect, r.kept) for r in LADDER[:3])
    report = tuning_report(ladder=bare, larger_batch=None)
    assert row(report, "stage").split() == ["stage", "so", "far", "95", "%", "CI", "changes"]
    assert row(report, "+ precision = all").split() == ["+", "precision", "=", "all", "tf32"]


def test_whose_memory_it_is_stands_above_it() -> None:
    assert "memory (main process)" in ladder_lines(tuning_report(memory_of="main process"))[0]
    assert "(main process)" not in ladder_lines(tuning_report(memory_of="GPU"))[0]


def test_a_kept_change_that_starts_late_names_when_that_is_made_good() -> None:
    def told(**startup: Any) -> str:
        late = dataclasses.replace(LADDER[2], **startup)
        return row(tuning_report(ladder=(*LADDER[:2], late)), "+ precision")

    after = told(startup_seconds=31.4, break_even_steps=1240)
    assert after.endswith("tf32; starts 31 s later, repaid after 1,240 steps")
    assert told(startup_seconds=31.4).endswith("tf32; starts 31 s later")
    assert told(startup_seconds=0.4).endswith("tf32")


def test_less_memory_is_told_with_its_proof_and_its_price() -> None:
    report = tuning_report(
        verdict="smaller", objective="memory", speedup=0.8, speedup_confidence_interval=None,
        memory_reduction=1.9, memory_reduction_confidence_interval=(1.88, 1.92),
        proof=dataclasses.replace(PROOF, pairs=((4 * GIB, 2 * GIB),) * 2),
    )  # fmt: skip
    told = verdict_sentence(report)
    assert told.startswith(
        "Peak memory 1.90× smaller (95 % interval 1.88–1.92, p = 0.0004, 2 pairs)"
    )
    assert ", at 0.80× the throughput, same training" in told
    assert row(report, "proven").split()[1:3] == ["×1.90", "1.88–1.92"]
    assert "×2.05" not in text(report), "that is the throughput, the price"


def test_less_energy_is_told_with_its_proof_its_price_and_a_column() -> None:
    report = tuning_report(
        verdict="saves_energy", objective="energy", speedup=1.7, speedup_confidence_interval=None,
        energy_reduction=1.9, energy_reduction_confidence_interval=(1.8, 2.0),
        proof=dataclasses.replace(PROOF, pairs=((2.0, 1.05),) * 2),
    )  # fmt: skip
    told = verdict_sentence(report)
    assert told.startswith(
        "Energy a sample 1.90× smaller (95 % interval 1.80–2.00, p = 0.0004, 2 pairs)"
    )
    assert ", at 1.70× the throughput, same training" in told
    measured = dataclasses.replace(LADDER[0], joules_per_sample=2.0)
    assert "energy/sample" not in text(report), "no GPU told it"
    told = text(dataclasses.replace(report, ladder=(measured, *LADDER[1:])))
    assert "energy/sample" in told
    assert "samples/J" in told
    (row,) = [line for line in told.splitlines() if "2.00 J" in line]
    assert "0.500" in row.split()


def test_the_larger_batch_names_its_price_and_how_to_get_it() -> None:
    shown = text(tuning_report())
    assert "with batch 256: ×12.5 (not proven)\n" in shown
    assert shown.count("apply with --allow pipeline,numerics,training") == 1
    assert "learning rate 0.1 → 0.8 (linear rule for SGD)" in shown
    proven = dataclasses.replace(LARGER_BATCH, proof=PROOF, side_effects=())
    shown = text(tuning_report(larger_batch=proven))
    assert "×12.5 (95 % interval 2.25–2.37, p = 0.0004, 3 pairs)" in shown
    assert "linearly for SGD, by the square root for Adam" in shown


def test_a_larger_batch_that_may_be_applied_says_why_it_is_not() -> None:
    late = dataclasses.replace(LADDER[-1], reason="not proven: the budget ended first")
    report = tuning_report(ladder=(*LADDER[:-1], late))
    assert row(report, "+ batch 256 (training)").endswith("not proven: the budget ended first")
    assert "--allow" not in text(report)


def test_a_batch_that_is_applied_is_not_offered_again() -> None:
    chosen = tuning_report().chosen
    assert chosen is not None
    applied = dataclasses.replace(chosen, knobs=LARGER_BATCH.knobs)
    kept = dataclasses.replace(LADDER[-1], kept=True, reason="")
    report = tuning_report(chosen=applied, ladder=(*LADDER[:3], kept))
    assert "--allow" not in text(report)
    assert row(report, "+ batch 256 (training) = all")
    assert row(report, "proven").endswith("changes training (batch_size)")


def test_what_to_type_next_can_be_pasted_into_a_shell() -> None:
    shown = text(tuning_report())
    assert "gpurun --tuned --nproc-per-node=2 train.py --name 'a b'" in shown
    assert "--tuned" not in text(tuning_report(verdict="no_gain"))


def test_a_rejection_by_the_loss_guard_shows_both_curves() -> None:
    report = tuning_report(verdict="no_gain", guard=REJECTED)
    shown = text(report)
    assert "loss guard: rejected: loss leaves the noise at step 2" in shown
    assert "loss, baseline  █▅▁ 1.00" in shown
    assert "loss, candidate ██! nan" in shown


def test_every_rejection_on_the_way_is_a_line() -> None:
    finite = Rejection({"autocast": "bf16"}, REJECTED)
    unseen = Rejection({"tf32": True}, GuardVerdict(False, None, None, ("no loss was seen",)))
    report = tuning_report(rejections=(finite, unseen))
    lines = ladder_lines(report)
    loss = "loss leaves the noise at step 2 (loss off by 30.0 %)"
    assert f"loss guard: rejected autocast bf16: {loss}" in lines
    assert "loss guard: rejected tf32: no loss was seen" in lines


def test_the_finalists_own_rejection_is_told_once() -> None:
    rejection = Rejection({"tf32": True}, REJECTED)
    report = tuning_report(verdict="no_gain", guard=REJECTED, rejections=(rejection,))
    assert sum("loss guard: rejected" in line for line in ladder_lines(report)) == 1


def test_a_larger_batch_that_the_loss_guard_rejects_is_not_offered() -> None:
    guard = GuardVerdict(False, None, None, ("the loss diverges",))
    larger = dataclasses.replace(LARGER_BATCH, guard=guard)
    rejection = Rejection(larger.knobs, guard)
    report = tuning_report(larger_batch=larger, rejections=(rejection,), ladder=LADDER[:-1])
    shown = text(report)
    assert "×12.5 (not proven), but the loss guard rejects it: the loss diverges" in shown
    assert "--allow" not in shown
    assert shown.count("the loss diverges") == 1


def test_the_load_of_other_programs_is_told_where_it_disturbs() -> None:
    said = "other programs used 1.3 of 2 cores during the trials, which can widen intervals"
    loaded = tuning_report(other_load=OtherLoad(cpu_percent=130.0, cores=2))
    assert said in text(loaded)
    assert "each its own cores (taskset)" in text(loaded)
    assert "taskset" not in text(tuning_report(other_load=OtherLoad(90.0, 2)))
    unproven = text(tuning_report(verdict="no_gain", proof=None, other_load=OtherLoad(130.0, 2)))
    assert "can hide small gains" in unproven
    failed = barren_report("script_failed", other_load=OtherLoad(130.0, 2))
    assert "other programs" not in text(failed)
    for quiet in (None, OtherLoad(cpu_percent=19.0, cores=2), OtherLoad(130.0, 64)):
        report = tuning_report(other_load=quiet)
        assert "other programs" not in text(report)


def test_lines_of_the_script_that_wait_for_the_gpu_are_named_with_what_to_do() -> None:
    item = WaitingLine("train.py:57", {".item()": 1.0})
    report = tuning_report(waits=(item,))
    said = (
        "train.py:57 (.item()) waits for the GPU in every step: gpurun does not edit it; "
        "move it out of the loop, or run it only every n steps"
    )
    assert said in ladder_lines(report)
    both = WaitingLine("loss.py:3", {".cpu()": 1.0, "float()": 2.5})
    shown = text(tuning_report(waits=(item, both)))
    assert "train.py:57 (.item()) and loss.py:3 (.cpu(), float() 2.5 times) wait for" in shown
    assert "move them out of the loop" in shown
    assert "train.py:57 (.item()) and 2 more wait" in text(tuning_report(waits=(item,) * 5))
    assert "waits for the GPU" not in text(tuning_report())


def test_without_a_terminal_the_ladder_is_plain_on_stderr_without_rich(tmp_path: Path) -> None:
    stdout, stderr = in_child(PRINT, tmp_path, tuning_report())
    assert stdout == ""
    assert "\x1b" not in stderr
    assert "gpurun: 2.31× faster" in stderr


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_narrow_terminal_loses_columns_and_no_word(tmp_path: Path, columns: int) -> None:
    _, shown = in_child(PRINT, tmp_path, tuning_report(), columns=columns, NO_COLOR="1")
    ours = [line for line in shown.splitlines() if "gpurun --tuned" not in line]  # to be copied
    assert max(map(len, ours)) <= columns
    assert "\x1b" not in shown
    table = shown[: shown.index("gpurun:")].split()
    assert {"(training)", "×2.31", "×5.40", "host_allocator", "keep", "compiler"} <= set(table)
    assert ("memory" in table) == (columns == 120)


def test_brackets_in_foreign_text_are_shown_as_they_are(tmp_path: Path) -> None:
    odd = "[red]x[/nothing]"
    rows = (dataclasses.replace(row, reason=odd) for row in LADDER)
    _, shown = in_child(
        PRINT, tmp_path, tuning_report(ladder=tuple(rows), larger_batch=None), columns=120
    )
    assert shown.count(odd) == len(LADDER) - 1, "one line for one reason"


def test_what_the_loss_guard_rejected_is_not_called_insignificant() -> None:
    guard = GuardVerdict(False, 0.3, 0.01, ("the loss is 30 % off",))
    said = verdict_sentence(
        tuning_report(verdict="no_gain", statistically_significant=False, guard=guard)
    )
    assert "rejected by the loss guard: the loss is 30 % off" in said
    assert "not significant" not in said


def test_training_is_what_the_chosen_settings_change_not_what_was_tried() -> None:
    assert LADDER[-1].effect == "training"
    assert "changes training" not in verdict_sentence(tuning_report())


def test_other_processes_on_the_gpu_are_told_with_the_verdict() -> None:
    def shared(*others: int | None) -> TuningReport:
        trials = [trial(n, {}, 800.0, foreign_processes=x) for n, x in enumerate(others, 1)]
        return tuning_report(trials=tuple(trials))

    said = "other processes were on the GPU in 2 of 3 trials"
    assert said in text(shared(0, 1, 2, None))
    for alone in (shared(0, 0), shared(None)):
        assert "other processes" not in text(alone)
    failed = barren_report("script_failed", trials=shared(1).trials)
    assert "other processes" not in text(failed)
