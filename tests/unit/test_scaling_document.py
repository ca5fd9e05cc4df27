"""What the document says of a measurement, and of what could not be measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gpurun.records.codec import from_json, to_json
from gpurun.records.result import HostUse
from gpurun.records.scaling import ScalingReport
from gpurun.records.spec import StopRule
from gpurun.report.plots.scaling_plot import draw_scaling
from gpurun.report.scaling_text import grid, scaling_lines, title
from gpurun.scaling.finished_launch import FinishedLaunch
from gpurun.scaling.scaling_document import document, worth_another_way
from gpurun.scaling.scaling_requests import PlannedLaunch
from scripts.generate_schemas import all_schemas
from tests.unit.scaling_launches import CPU, around, asked, failure, launch, measured, split

RULE = StopRule(60, 0.0, 60, 10, 0)
WEAK_STEPS = {1: 10.0, 2: 10.5, 4: 11.0, 8: 13.0}


def planned(ranks: int, exchange: bool = True) -> PlannedLaunch:
    return PlannedLaunch(ranks, RULE, exchange)


def turns(steps: dict[int, float], **figures: Any) -> list[tuple[int, FinishedLaunch]]:
    """Two rounds of each count, the second 2 % slower throughout."""
    return [
        (number, launch(planned(ranks), step * factor, **figures))
        for number, factor in ((1, 1.0), (2, 1.02))
        for ranks, step in steps.items()
    ]


def mute(steps: dict[int, float], **figures: Any) -> list[tuple[int, FinishedLaunch]]:
    return [(1, launch(planned(ranks, exchange=False), x, **figures)) for ranks, x in steps.items()]


def test_the_document_has_what_the_issue_names_and_fits_its_schema() -> None:
    report = document(asked(1, 2, 4, 8), measured(*turns(WEAK_STEPS)), around())
    body = json.loads(json.dumps(to_json(report)))
    assert body["schema"] == "gpurun/scaling@1"
    jsonschema.validate(body, all_schemas()["scaling@1.json"])
    assert from_json(ScalingReport, body) == report
    assert {"mode", "points", "findings", "projection"} <= set(body)
    assert {
        "gpus",
        "samples_per_second",
        "speedup",
        "efficiency",
        "efficiency_confidence_interval",
        "exposed_communication_percent",
        "imbalance",
        "peak_memory_bytes",
    } <= set(body["points"][0])
    assert (report.verdict, report.exit_code, report.mode) == ("ok", 0, "weak")


def test_weak_and_strong_efficiency_are_speedup_over_devices() -> None:
    report = document(asked(1, 2, 4, 8), measured(*turns(WEAK_STEPS)), around())
    eighth = report.points[3]
    assert eighth.efficiency == pytest.approx(10 / 13)
    assert eighth.speedup == pytest.approx(80 / 13)
    assert eighth.efficiency_confidence_interval is not None
    assert report.points[0].efficiency_confidence_interval is None
    strong = document(asked(1, 2, strong=True), measured(*turns({1: 10.0, 2: 12.0})), around())
    assert strong.mode == "strong"
    assert strong.points[1].efficiency == pytest.approx(10 / 12)


def test_what_was_not_measured_is_null_and_never_0() -> None:
    report = document(asked(1, 2), measured(*turns({1: 10.0, 2: 11.0})), around())
    point = report.points[1]
    assert point.exposed_communication_percent is None
    assert point.imbalance is None
    assert point.step_split is None
    assert report.projection is None
    assert any("no projection" in note for note in report.notes)


def test_the_exchange_is_what_is_gone_without_it() -> None:
    launches = [*turns({1: 10.0, 4: 12.5}), *mute({4: 10.0}, imbalance=1.02)]
    report = document(asked(1, 4), measured(*launches), around())
    assert report.points[1].exposed_communication_percent == pytest.approx(20)
    assert report.points[1].imbalance == pytest.approx(1.02)
    (finding,) = report.findings
    assert finding.type == "multi_gpu_comm"
    assert finding.gpus == 4
    assert finding.gain_upper_bound == pytest.approx(1.25)
    assert any("gradient_as_bucket_view" in advice for advice in finding.recommendations)


def test_noise_does_not_make_communication_negative() -> None:
    launches = [*turns({1: 10.0, 2: 10.0}), *mute({2: 10.3})]
    report = document(asked(1, 2), measured(*launches), around())
    assert report.points[1].exposed_communication_percent == 0.0


def test_a_slow_rank_is_found() -> None:
    launches = [*turns({1: 10.0, 2: 13.0}), *mute({2: 13.0}, imbalance=1.3)]
    report = document(asked(1, 2, strong=True), measured(*launches), around())
    assert [finding.type for finding in report.findings] == ["load_imbalance"]
    assert report.findings[0].severity == pytest.approx(0.7)
    assert report.findings[0].description.startswith("the slowest rank works 30% longer")


@pytest.mark.parametrize(
    ("second", "named"), [(5, "rank 5, the slowest,"), (2, "the slowest rank")]
)
def test_a_rank_that_is_always_the_slowest_is_named(second: int, named: str) -> None:
    launches = [*turns({1: 10.0, 8: 13.0}), *mute({8: 13.0}, imbalance=1.3, busiest=5)]
    launches += [(2, one) for _, one in mute({8: 13.0}, imbalance=1.3, busiest=second)]
    report = document(asked(1, 8, strong=True), measured(*launches), around())
    (finding,) = report.findings
    assert finding.description.startswith(f"{named} works 30% longer")
    assert finding.evidence.get("rank") == (5 if second == 5 else None)


def test_a_wait_for_data_that_grows_is_found() -> None:
    launches = [
        (1, launch(planned(1), 10.0, parts=split(data_wait=1, forward=3, backward=6))),
        (1, launch(planned(4), 14.0, parts=split(data_wait=5, forward=3, backward=6))),
    ]
    report = document(asked(1, 4), measured(*launches, rounds=1), around())
    (finding,) = report.findings
    assert finding.type == "data_bound"
    assert finding.evidence["data_wait_ms_at_smallest"] == 1
    assert finding.gain_upper_bound == pytest.approx(1.4)


def test_the_same_work_that_takes_longer_beside_others_is_found_in_weak_scaling_only() -> None:
    launches = [
        (1, launch(planned(1), 10.0, parts=split(forward=3, backward=6, optimizer=1))),
        (1, launch(planned(2), 20.0, parts=split(forward=6, backward=12, optimizer=2))),
    ]
    report = document(asked(1, 2), measured(*launches, rounds=1), around(CPU))
    assert [finding.type for finding in report.findings] == ["shared_host"]
    assert "cores" in report.findings[0].recommendations[0]
    strong = document(asked(1, 2, strong=True), measured(*launches, rounds=1), around(CPU))
    assert strong.findings == ()


def test_nothing_is_found_where_it_scales() -> None:
    launches = [*turns({1: 10.0, 2: 10.5}), *mute({2: 8.0}, imbalance=1.5)]
    assert document(asked(1, 2), measured(*launches), around()).findings == ()


def test_ranks_that_ignore_each_other_are_called_so() -> None:
    report = document(asked(1, 2), measured(*turns({1: 10.0, 2: 10.0}, together=False)), around())
    assert any("exchanged nothing" in note for note in report.notes)


def test_weak_scaling_does_not_pass_for_strong() -> None:
    report = document(asked(1, 2, strong=True), measured(*turns({1: 10.0, 2: 10.0})), around())
    assert any("this is weak scaling" in note for note in report.notes)


def test_several_nodes_are_counted_together_and_nothing_is_projected_over_two_kinds_of_links() -> (
    None
):
    nodes = around(nodes=2, ranks_a_node=4)
    report = document(asked(1, 4, 8), measured(*turns({1: 10.0, 4: 11.0, 8: 13.0})), nodes)
    assert (report.nodes, report.devices, report.oversubscribed) == (2, 8, False)
    assert report.projection is None
    assert any(
        note.startswith("no projection: the model has one kind of link") for note in report.notes
    )
    assert "(8 devices on 2 nodes: NVIDIA H200)" in title(report)
    shared = around(CPU, nodes=2, ranks_a_node=4)
    report = document(asked(1, 8), measured(*turns({1: 10.0, 8: 13.0})), shared)
    assert report.oversubscribed, "a node has 2 cores, and 4 ranks"
    assert report.devices == 4
    assert any("the ranks of a node share 2 cores" in note for note in report.notes)


def test_a_machine_that_others_use_is_told() -> None:
    host = HostUse(100.0, 2.0, None, 3, others_cpu_percent=80.0)
    busy = [(n, replace(x, result=replace(x.result, host=host))) for n, x in turns({1: 10.0})]
    report = document(asked(1, 2), measured(*busy), around(CPU))
    assert any("other programs used 0.8 of 2 cores" in note for note in report.notes)


def test_an_interval_that_says_nothing_is_called_so_and_nothing_is_fitted_to_it() -> None:
    counts = {1: 10.0, 2: 11.5, 4: 11.5}
    uneven = [
        (n, launch(planned(ranks), x * (0.5 if ranks > 1 and n == 2 else 1.0)))
        for n in (1, 2)
        for ranks, x in counts.items()
    ]
    held_up = mute({2: 6.0})
    report = document(asked(1, 2, 4), measured(*uneven, *held_up), around())
    assert report.projection is None
    for wanted in (
        "differ too much to know the efficiency at 2",
        "no efficiency is certain enough to fit it to",
    ):
        assert any(wanted in note for note in report.notes), wanted
    assert any("more than 100 % at 2" in note for note in report.notes)
    assert grid(report).rows[1][4] == "undecided"
    assert all(finding.severity < 0.7 for finding in report.findings)


def test_one_round_is_an_indication() -> None:
    report = document(asked(1, 2), measured(*turns({1: 10.0, 2: 10.5})[:2], rounds=1), around())
    assert any("one round gives no interval" in note for note in report.notes)


@pytest.mark.parametrize(
    ("whole", "told"),
    [
        (True, "ended by themselves after 13 of 50 steps"),
        (False, "of some launches only 13 of 50 steps count"),
    ],
)
def test_what_cut_a_launch_short_is_told(whole: bool, told: str) -> None:
    seen = replace(launch(planned(1)), whole=whole)
    assert seen.figures is not None
    short = replace(seen, figures=replace(seen.figures, steps=13))
    report = document(asked(1), measured((1, short)), around())
    (note,) = (note for note in report.notes if " steps" in note)
    assert told in note


# -- what could not be measured --------------------------------------------------------------------


def test_a_count_without_enough_memory_is_a_result() -> None:
    launches = [
        *turns({1: 10.0, 2: 11.0}),
        (1, failure(planned(4), "oom", "out of memory on rank 3")),
    ]
    report = document(asked(1, 2, 4), measured(*launches), around())
    assert (report.verdict, report.exit_code) == ("ok", 0)
    assert report.points[2].error == "out of memory on rank 3"
    assert report.points[2].efficiency is None
    assert report.points[1].efficiency is not None


@pytest.mark.parametrize("status", ["failed", "timeout"])
def test_a_count_on_which_the_script_fails_is_its_failure(status: str) -> None:
    launches = [*turns({1: 10.0}), (1, failure(planned(2), status))]
    report = document(asked(1, 2), measured(*launches), around())
    assert (report.verdict, report.exit_code) == ("failed", 5)
    assert report.points[0].samples_per_second is not None


def test_without_the_smallest_count_everything_fails() -> None:
    report = document(asked(1, 2), measured((0, failure(planned(1), "oom")), rounds=0), around())
    assert (report.verdict, report.exit_code) == ("failed", 5)
    assert report.points[1].error == "not measured: the smallest count failed"
    assert all(point.samples_per_second is None for point in report.points)


def test_a_budget_that_ends_before_a_count_was_measured_is_no_answer() -> None:
    seen = measured(*turns({1: 10.0}))
    seen.out_of_time = True
    report = document(asked(1, 2), seen, around())
    assert (report.verdict, report.exit_code) == ("incomplete", 3)
    assert report.points[1].error == "not measured: the budget ended"


def test_an_interrupted_measurement_keeps_what_it_has() -> None:
    seen = measured(*turns({1: 10.0, 2: 11.0}))
    report = document(asked(1, 2, 4), seen, around(interrupted=True))
    assert (report.verdict, report.exit_code) == ("interrupted", 130)
    assert report.points[1].efficiency is not None
    assert report.points[2].error == "not measured: interrupted"


# -- how it is shown -------------------------------------------------------------------------------


def test_the_table_has_a_row_a_count_and_no_column_of_nothing() -> None:
    launches = [*turns(WEAK_STEPS), *mute({8: 10.0}, imbalance=1.02)]
    report = document(asked(1, 2, 4, 8), measured(*launches), around())
    shown = grid(report)
    assert [row[0] for row in shown.rows] == ["1", "2", "4", "8"]
    headings = [column.heading for column in shown.columns]
    assert "exposed comm." in headings
    assert "of the step" not in headings
    text = "\n".join(scaling_lines(report))
    assert "multi_gpu_comm at 8" in text
    assert "projection, not measured" in text


def test_the_picture_is_a_png_also_of_a_single_point(tmp_path: Path) -> None:
    full = document(asked(1, 2, 4, 8), measured(*turns(WEAK_STEPS)), around())
    one = document(asked(1, 2), measured(*turns({1: 10.0}), (1, failure(planned(2)))), around())
    none = document(asked(1, 2), measured((0, failure(planned(1)))), around())
    for name, report in (("full", full), ("one", one)):
        assert draw_scaling(report, tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    assert not draw_scaling(none, tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("four", "without", "at"),
    [(14.0, 13.0, 4), (14.0, 13.95, 2), (10.2, 9.0, 2), (14.0, None, 2)],
)
def test_other_ways_are_tried_at_the_largest_count_that_the_exchange_may_hold_up(
    four: float, without: float | None, at: int
) -> None:
    """Short of 90 %, with an exchange that is worth it: 10 ms a step would be 100 %."""
    steps = {1: 10.0, 2: 12.0, 4: four}
    exchanged_not = {2: 11.0} | ({} if without is None else {4: without})
    found = measured(*turns(steps), *mute(exchanged_not))
    assert worth_another_way(asked(1, 2, 4), found) == at
    assert worth_another_way(asked(1, 2), measured(*turns(steps), *mute({2: 11.9}))) is None
