"""Each knob belongs to one stage of the ladder."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from gpurun.errors import GpurunError
from gpurun.knobs import all_knobs
from gpurun.knobs.api import Effect
from gpurun.knobs.stages import STAGES, in_order, stage_of
from tests.unit.tuner_searches import Planted


def test_every_knob_of_the_package_stands_in_the_table_once() -> None:
    counted = Counter(name for names in STAGES.values() for name in names)
    assert counted == Counter(knob.name for knob in all_knobs())


def test_only_the_batch_stage_changes_the_training() -> None:
    training = {stage_of(knob) for knob in all_knobs() if knob.effect is Effect.TRAINING}
    assert training == {"batch"}


@pytest.mark.parametrize(
    ("effect", "named", "stage"),
    [
        (Effect.PIPELINE, "", "transfer"),
        (Effect.NUMERICS, "", "kernels"),
        (Effect.TRAINING, "", "batch"),
        (Effect.NUMERICS, "data", "data"),
    ],
)
def test_a_knob_of_the_users_own_belongs_where_it_says_else_where_its_effect_does(
    effect: Effect, named: str, stage: str
) -> None:
    assert stage_of(Planted("mine", effect=effect, stage=named)) == stage


def test_the_table_outranks_what_a_knob_says() -> None:
    assert stage_of(Planted("compile", stage="data")) == "compile"


def test_a_stage_that_there_is_not_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    (tmp_path / "staged.py").write_text(
        "from gpurun.knobs.api import Effect, Knob\n"
        "class Staged(Knob):\n"
        "    name, effect, stage = 'staged', Effect.PIPELINE, 'loading'\n"
        "    def candidates(self, facts): return [1]\n"
        "    def apply(self, value, hooks): pass\n"
    )
    with pytest.raises(GpurunError) as refused:
        all_knobs([str(tmp_path / "staged.py")])
    assert "the knob Staged has the `stage` 'loading'" in refused.value.what
    assert "data, transfer, precision" in refused.value.todo


def test_stages_are_told_in_the_order_of_the_ladder() -> None:
    assert in_order(["compile", "data", "kernels", "data"]) == ["data", "kernels", "compile"]
