"""Comparisons by live pairs: what is judged, when launches go in turn instead, and what is said."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpurun.bench.benchmark_launcher import Launch, Launcher
from gpurun.bench.compare.pair_runner import Findings, PairRunner
from gpurun.bench.trees.installed_packages import Tree
from gpurun.bench.trees.module_origins import EditedFiles
from gpurun.bench.trees.prepared_sides import BASELINE, CURRENT, Side
from gpurun.errors import ExitCode, GpurunError
from gpurun.isolation.isolation_mode import Mode
from gpurun.pairs.engine import PairOutcome
from gpurun.pairs.estimate import LIVE_SD, LOOSE_SD
from gpurun.pairs.gate import GatePlan, Verdict
from gpurun.pairs.turn_ratio import TurnRatio
from gpurun.records.bench.metrics import Metric
from gpurun.records.events import OriginsEvent
from gpurun.records.failure import Failure, FailureKind
from gpurun.records.result import HostUse, StepTime
from gpurun.records.spec import StopRule
from gpurun.report.comparison_text import comparison_lines
from gpurun.stats.loss_curve_points import curve_of
from gpurun.trials.launch_request import LaunchRequest
from gpurun.trials.outcome import Outcome
from gpurun.trials.stop_rules import first_rule
from scripts.gate_runs import IN_TURN
from tests.repositories import commit, new_repository
from tests.unit.bench_launches import BENCHMARK, device, launch, on_gpu, sides_below
from tests.unit.test_bench_document import document

LOST = [1.0 / (step + 1) for step in range(40)]


class Live(Launcher):
    """Live pairs whose current side is slower by known logs; the uninterrupted stretches of both
    say something else, as on a machine that drifts."""

    def __init__(self, folder: Path, logs: list[float], error: float = 0.003) -> None:
        super().__init__(BENCHMARK, folder, Mode.OVERLAY, print)
        self.logs, self.error = logs, error
        self.turns = ""
        self.fails: Failure | None = None
        self.losses = {BASELINE: LOST, CURRENT: LOST}
        self.loaded: tuple[tuple[str, str], ...] = ()
        self.during_pair: list[Callable[[], object]] = []
        self.figures: dict[str, Any] = {}

    def run(self, start: Side, rule: StopRule, *, first: bool = False) -> Launch:
        self.turns += start.name[0]
        return replace(
            launch(start.name, 1000.0),
            start=start,
            loss_curve=curve_of(self.losses[start.name]),
            origins=(OriginsEvent(self.loaded, (), (), (), complete=True),),
        )

    def run_pair(self, starts: tuple[Side, Side], rule: StopRule) -> PairOutcome[Launch]:
        self.turns += f"({starts[0].name[0]}{starts[1].name[0]})"
        if self.during_pair:
            self.during_pair.pop(0)()
        sides = [self._side(start) for start in starts]
        drifted = replace(sides[1], result=replace(sides[1].result, samples_per_second=700.0))
        if self.fails is not None:
            ended = replace(drifted, error=self.fails.text, failure=self.fails)
            return PairOutcome(sides[0], ended, None, self.fails.text)
        log = self.logs.pop(0) if len(self.logs) > 1 else self.logs[0]
        ratio = TurnRatio(log, self.error, 40)
        return PairOutcome(sides[0], drifted, ratio.turned if starts[0].name == CURRENT else ratio)

    def _side(self, start: Side) -> Launch:
        curve = curve_of(self.losses[start.name])
        return replace(launch(start.name, 1000.0, **self.figures), start=start, loss_curve=curve)


def comparing(folder: Path, launcher: Launcher, **more: Any) -> tuple[PairRunner, Findings]:
    findings = Findings()
    sides = sides_below(folder)
    one = PairRunner(sides, BENCHMARK, launcher, GatePlan(), findings, print, **more)
    return one, findings


def edited_while_taken(folder: Path, launcher: Live, edit: Callable[[Path], object]) -> Findings:
    """The findings of a comparison in whose second pair the current tree is edited so."""
    tree = new_repository(folder / CURRENT)
    commit(tree, {"work.py": "1", "settings.yaml": "1", ".gitignore": "*.so\nlog.txt\n"})
    for name in ("new.py", "new.yaml", "built.so", "log.txt", "notes.txt"):
        (tree / name).write_text("1")
    runner, findings = comparing(folder, launcher)
    launcher.loaded = (("built", str(tree / "built.so")),)
    (tree / "log.txt").write_text("grows, as another training's does")
    (tree / "notes.txt").write_text("more")
    launcher.during_pair = [lambda: None, lambda: edit(tree)]
    runner.run()
    return findings


@pytest.mark.parametrize(
    ("edited", "how"),
    [
        ("work.py", "changed"),
        ("new.py", "changed"),
        ("settings.yaml", "changed"),
        ("new.yaml", "changed"),
        ("built.so", "changed"),
        ("late.py", "added"),
    ],
)
def test_a_file_edited_while_a_pair_is_taken_ends_the_comparison_by_its_name(
    edited: str, how: str, tmp_path: Path
) -> None:
    launcher = Live(tmp_path, [math.log(0.97)])

    with pytest.raises(GpurunError, match=f"{CURRENT}/{edited} was {how}") as refused:
        edited_while_taken(tmp_path, launcher, lambda tree: (tree / edited).write_text("2 instead"))

    assert refused.value.code == ExitCode.BENCHMARK_FAILED
    assert not launcher.during_pair  # in the second pair


def test_a_file_that_is_written_as_it_was_does_not_end_the_comparison(tmp_path: Path) -> None:
    launcher = Live(tmp_path, [math.log(0.97)])
    findings = edited_while_taken(tmp_path, launcher, lambda tree: (tree / "work.py").touch())
    assert len(findings.pairs) > 1


def test_a_script_that_works_in_place_may_write_a_module(tmp_path: Path) -> None:
    launcher = Live(tmp_path, [0.0])
    launcher.mode = launcher.trials.mode = Mode.IN_PLACE
    one, findings = comparing(tmp_path, launcher)
    (tmp_path / CURRENT / "made.py").write_text("by the script")
    one.run()
    assert findings.pairs


def test_trees_that_git_cannot_list_are_not_compared_unwatched(tmp_path: Path) -> None:
    tree = new_repository(tmp_path / CURRENT)
    (tree / ".git" / "index").write_text("no index")
    with pytest.raises(GpurunError, match="git ls-files failed: "):
        comparing(tmp_path, Live(tmp_path, [0.0]))


def test_in_a_folder_without_a_repository_loaded_files_alone_are_watched(tmp_path: Path) -> None:
    for name in ("loaded.py", "other.py"):
        (tmp_path / name).write_text("1")
    edited = EditedFiles([tmp_path])
    loaded = str(tmp_path / "loaded.py")
    edited.loaded([OriginsEvent((("loaded", loaded),), (), (), (), complete=True)])
    for name in ("other.py", "new.py"):
        (tmp_path / name).write_text("2 instead")
    edited.refuse()
    (tmp_path / "loaded.py").write_text("2 instead")
    with pytest.raises(GpurunError, match=f"{loaded} was changed"):
        edited.refuse()


def test_live_pairs_decide_by_their_turns_and_not_by_their_stretches(tmp_path: Path) -> None:
    launcher = Live(tmp_path, [0.002, -0.004, 0.001])
    one, findings = comparing(tmp_path, launcher)
    one.run()
    count = len(findings.pairs)
    assert 2 <= count <= 5
    assert (launcher.turns, findings.verdict) == (first_turns(count), Verdict.PASS)
    logs = [0.002, -0.004, 0.001, 0.001, 0.001][:count]
    by_turns = [before / now for before, now in findings.figures(Metric.THROUGHPUT)]
    assert by_turns == pytest.approx([math.exp(log) for log in logs])


def first_turns(pairs: int) -> str:
    """Both warm up, then live pairs change the order of their sides."""
    return "bc" + "".join("(cb)" if number % 2 else "(bc)" for number in range(pairs))


def test_a_loss_of_8_percent_is_a_regression_after_a_few_live_pairs(tmp_path: Path) -> None:
    lost = -math.log(0.92)
    launcher = Live(tmp_path, [lost + 0.01, lost - 0.008, lost, lost + 0.004])
    one, findings = comparing(tmp_path, launcher)
    one.run()
    assert findings.verdict is Verdict.REGRESSION
    assert len(findings.pairs) <= 6


def test_a_loss_that_is_not_finite_ends_the_comparison_with_the_first_pair(tmp_path: Path) -> None:
    launcher = Live(tmp_path, [0.08, -0.07] * 4)
    launcher.losses[CURRENT] = [*LOST[:20], *[math.inf] * 20]
    one, findings = comparing(tmp_path, launcher)
    one.run()
    assert launcher.turns == "bc(bc)"
    found = document(findings)
    assert (found.verdict, found.exit_code) == ("regression", 1)


def test_pairs_that_differ_more_than_those_recorded_ask_for_more(tmp_path: Path) -> None:
    launcher = Live(tmp_path, [0.08, -0.07, 0.06, -0.08] * 4)
    one, findings = comparing(tmp_path, launcher)
    one.run()
    assert len(findings.pairs) > 6
    assert findings.verdict is not Verdict.REGRESSION


def test_turns_that_say_little_ask_for_more_pairs(tmp_path: Path) -> None:
    counts = []
    for error in (0.003, 0.05):
        folder = tmp_path / str(error)
        folder.mkdir()
        one, findings = comparing(folder, Live(folder, [0.001, -0.002, 0.002, 0.0], error))
        one.run()
        counts.append(len(findings.pairs))
    assert counts[0] < counts[1]


def test_what_fails_beside_a_partner_is_launched_in_turn_and_both_kinds_count(
    tmp_path: Path,
) -> None:
    launcher = Live(tmp_path, [0.3])
    one, findings = comparing(tmp_path, launcher)
    pairs = launcher.run_pair

    def run_pair(starts: tuple[Side, Side], rule: StopRule) -> PairOutcome[Launch]:
        if launcher.turns.endswith("(bc)"):
            launcher.fails = Failure(FailureKind.EXCEPTION, "OSError: address in use", 1)
        return pairs(starts, rule)

    launcher.run_pair = run_pair  # type: ignore[method-assign]
    one.run()
    assert launcher.turns.startswith("bc(bc)(cb)(cb)" + "cb" + "bccb")
    assert {pair.in_turn for pair in findings.pairs[1:]} == {
        "a live pair failed: OSError: address in use"
    }
    live, *in_turn = findings.figures(Metric.THROUGHPUT)
    assert live[1] == pytest.approx(1000.0 * math.exp(-0.3))
    assert set(in_turn) == {(1000.0, 1000.0)}
    assert len(launcher.turns) == len("bc(bc)(cb)(cb)") + 2 * len(in_turn)


def test_one_live_pair_that_fails_takes_nothing_from_the_others(tmp_path: Path) -> None:
    """The last launches of a short training end in the middle of their turns now and then."""
    launcher = Live(tmp_path, [0.002, -0.004, 0.001])
    one, findings = comparing(tmp_path, launcher)
    pairs = launcher.run_pair

    def run_pair(starts: tuple[Side, Side], rule: StopRule) -> PairOutcome[Launch]:
        second = launcher.turns.endswith("bc(bc)")
        over = Failure(FailureKind.TOO_FEW_STEPS, "current ended with exit code 0")
        launcher.fails = over if second else None
        return pairs(starts, rule)

    launcher.run_pair = run_pair  # type: ignore[method-assign]
    one.run()
    again = first_turns(2) + first_turns(len(findings.pairs)).removeprefix(first_turns(1))
    assert launcher.turns == again
    assert ({pair.in_turn for pair in findings.pairs}, findings.verdict) == ({""}, Verdict.PASS)


def test_launches_that_fail_alone_too_fail_the_benchmark(tmp_path: Path) -> None:
    launcher = Live(tmp_path, [0.0])
    one, _ = comparing(tmp_path, launcher)
    launcher.fails = Failure(FailureKind.EXCEPTION, "ValueError: no", 1)
    alone = launcher.run

    def run(start: Side, rule: StopRule, *, first: bool = False) -> Launch:
        done = alone(start, rule, first=first)
        return done if first else replace(done, error="ValueError: no", failure=launcher.fails)

    launcher.run = run  # type: ignore[method-assign]
    with pytest.raises(Exception, match=r"failed on both sides in pair 1: ValueError: no"):
        one.run()
    assert launcher.turns == "bc(bc)bbcc", "each alone, and once more"


HUGE = HostUse(None, None, 1 << 60, None)
SLOW = StepTime(21e3, 21e3, 21e3, 21e3)


@pytest.mark.parametrize(
    ("changes", "mode", "why"),
    [
        ({}, Mode.OVERLAY, ""),
        ({}, Mode.IN_PLACE, "trials work on the real files"),
        ({"ranks": 2}, Mode.OVERLAY, "the script runs in several ranks"),
        ({"status": "completed"}, Mode.OVERLAY, "the script is over too soon to take turns"),
        ({"step_time_ms": SLOW}, Mode.OVERLAY, "a step takes 21 s"),
        ({"host": HUGE}, Mode.OVERLAY, "both sides together do not fit in memory"),
    ],
)
def test_what_cannot_be_live_is_launched_in_turn_and_why(
    changes: dict[str, Any], mode: Mode, why: str, tmp_path: Path
) -> None:
    launcher = Live(tmp_path, [0.0])
    launcher.mode = launcher.trials.mode = mode
    first = [launch(BASELINE, 1000.0), launch(CURRENT, 1000.0, **changes)]
    assert launcher.obstacle(first) == why


def test_the_script_that_asks_for_launches_in_turn_gets_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Launcher, "obstacle", Launcher.obstacle)
    monkeypatch.setattr("gpurun.cli.main", lambda argv: 0)
    with pytest.raises(SystemExit):
        exec(IN_TURN, {})
    one, findings = comparing(tmp_path, Live(tmp_path, [0.0]))
    one.run()
    assert {pair.in_turn for pair in findings.pairs} == {"asked for"}


def test_two_models_that_do_not_fit_on_one_gpu_are_launched_in_turn(tmp_path: Path) -> None:
    launcher = Live(tmp_path, [0.0])
    gpu = replace(device(), memory_total_bytes=10 << 30)
    sides = [
        launch(side, 1000.0, peak_reserved_bytes=4 << 30, devices=(gpu,))
        for side in (BASELINE, CURRENT)
    ]
    assert launcher.obstacle(sides) == "both sides together do not fit in memory"
    assert launcher.obstacle(sides[:1]) == ""


def test_a_script_that_ends_before_its_turns_do_is_launched_in_turn(tmp_path: Path) -> None:
    launcher = Live(tmp_path, [0.0])
    ended = launch(CURRENT, 1000.0, status="completed")
    over = "current ended with exit code 0"
    launcher.run_pair = lambda *_: PairOutcome(ended, ended, None, over)  # type: ignore[method-assign]
    start = Side(BASELINE, "", Tree(tmp_path), tmp_path, Path("/usr/bin/python"), {})
    engine = launcher.engine(
        first_rule(12), print, lambda: math.inf, lambda side: launch(side.name, 1000.0)
    )
    taken = engine.take(start, replace(start, name=CURRENT), 1, turned=False)
    assert (launcher.turns, taken.ratio) == ("bc", None)
    assert taken.in_turn == "the script is over before a live pair is measured"


def test_what_fails_on_the_files_of_the_first_launch_starts_from_the_original_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so do later launches; one that fails without these files fails once."""
    told: list[str] = []
    made = Launcher(BENCHMARK, tmp_path, Mode.OVERLAY, told.append)
    start = Side(BASELINE, "", Tree(tmp_path), tmp_path, Path("/usr/bin/python"), {})
    layers, ran = {BASELINE}, []

    def run(request: LaunchRequest) -> Outcome:
        ran.append(request.run_dir.name)
        failure = Failure(FailureKind.EXCEPTION, "OSError: exists") if len(ran) != 2 else None
        return Outcome(request, launch(BASELINE, 1.0).result, (), 1, 1.0, failure)

    monkeypatch.setattr(made.trials, "run", run)
    monkeypatch.setattr(made.trials, "has_layer", layers.__contains__)
    monkeypatch.setattr(made.trials, "drop_layer", layers.remove)
    rule = first_rule(12)
    errors = [made.run(start, rule).error for _ in range(2)]
    assert (errors, layers, len(ran)) == (["", "OSError: exists"], set(), 3)
    assert [line.startswith("a launch failed on top of the first") for line in told] == [True]


def test_the_losses_of_first_launches_count_with_live_pairs(tmp_path: Path) -> None:
    one, findings = comparing(tmp_path, Live(tmp_path, [0.0]))
    one.run()
    training, launches = findings.training(), len(findings.pairs) + 1
    assert (training.launches, training.differs) == ((launches, launches), False)


def test_the_report_says_how_pairs_were_launched(tmp_path: Path) -> None:
    one, findings = comparing(tmp_path, Live(tmp_path, [0.1]))
    one.run()
    found = document(findings)
    assert found.method is not None
    assert (found.method.live, found.method.prior_sd) == (True, LIVE_SD)
    lines = comparison_lines(found)
    assert any(line.startswith("live pairs of one tree differ by ") for line in lines)
    assert f"({found.pairs} live pairs)" in lines[-2]

    # the stretches of this machine said 30 %, and its turns 9.5 %
    assert [line.split()[-2:] for line in lines if "samples/s" in line] == [["−9.5", "%"]]

    launcher = Live(tmp_path, [0.0])
    launcher.mode = launcher.trials.mode = Mode.IN_PLACE
    one, findings = comparing(tmp_path, launcher)
    one.run()
    lines = comparison_lines(document(findings))
    assert "launches one after the other, not live pairs: trials work on the real files" in lines
    assert any(line.startswith("pairs of one tree differ by ") for line in lines)
    assert f"({len(findings.pairs)} pairs)" in lines[-1]


@pytest.mark.parametrize(("active_percent", "sd"), [(97.0, LIVE_SD), (25.0, LOOSE_SD)])
def test_launches_whose_gpu_waits_are_assumed_to_differ_by_more(
    tmp_path: Path, active_percent: float, sd: float
) -> None:
    live = Live(tmp_path, [0.0])
    live.figures = on_gpu(active_percent)
    one, findings = comparing(tmp_path, live)
    one.run()
    found = document(findings)
    assert found.method is not None
    assert found.method.prior_sd == sd
    first = replace(findings, pairs=findings.pairs[:2]).judged(GatePlan((2,))).metrics[0]
    assert first.pair_sd == pytest.approx(math.hypot(sd, live.error) / math.sqrt(2))
