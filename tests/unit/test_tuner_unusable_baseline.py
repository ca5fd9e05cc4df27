"""A script that cannot be tuned: the verdict tells its own ends from the budget's."""

from __future__ import annotations

from dataclasses import replace

from gpurun.arguments.options import Objective
from gpurun.records.failure import Failure, FailureKind
from gpurun.tuner import tuning_findings
from gpurun.tuner.tuning_trial import Trial
from tests.unit.tuner_trials import trial


def unusable(trial: Trial) -> tuple[str, str]:
    ended = tuning_findings.unusable(trial)
    return ended.verdict, ended.why


def with_steps(steps: int, status: str) -> Trial:
    """A trial that was not measured, after so many steps."""
    found = trial(None, status=status, reason="not done after 30 s", seconds=44.0)
    assert found.result is not None
    return replace(found, result=replace(found.result, steps=steps))


def test_a_budget_that_ends_before_the_first_step_says_nothing_of_the_script() -> None:
    for steps, words in ((0, "no training step of the"), (7, "7 steps of the")):
        verdict, reason = unusable(with_steps(steps, "timeout"))
        assert verdict == "inconclusive"
        assert words in reason
        assert "a longer --budget" in reason


def test_a_script_whose_energy_was_not_told_does_not_pass_for_one_that_fails() -> None:
    told = unusable(replace(trial(100.0), objective=Objective.ENERGY))
    assert told == ("not_measured", "the energy of a sample was not measured in it")


def test_a_script_that_ended_without_a_step_is_no_training() -> None:
    assert unusable(with_steps(0, "completed"))[0] == "no_training"
    assert unusable(with_steps(7, "completed"))[0] == "too_few_steps"


def test_a_script_that_somebody_killed_is_tuned_again_and_one_that_crashes_is_not() -> None:
    def told(kind: FailureKind, reason: str) -> tuple[str, str]:
        found = with_steps(3, "killed")
        record = replace(found.record, reason=reason)
        return unusable(replace(found, record=record, failure=Failure(kind, reason)))

    verdict, reason = told(FailureKind.KILLED, "killed from outside (SIGKILL)")
    assert (verdict, reason.endswith("tune again")) == ("script_failed", True)
    verdict, reason = told(FailureKind.SIGNAL, "killed by signal SIGSEGV")
    assert (verdict, "the script fails by itself" in reason) == ("script_failed", True)
