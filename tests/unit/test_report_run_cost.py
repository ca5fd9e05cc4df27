"""Hours, money, energy and CO₂: computed from the pace, and silent where nothing is known."""

from __future__ import annotations

import pytest

from gpurun.arguments.gpurun_toml import ReportConfig
from gpurun.formatting.number_text import energy_text
from gpurun.measure.training_clock import PlannedWork
from gpurun.report.page.cost_section import (
    Pace,
    basis_sentence,
    cost_grid,
    cost_of,
    cost_sentence,
)

PRICED = ReportConfig(price_per_hour=2.80, grams_co2_per_kwh=380.0)
WORK = PlannedWork(epochs=10, samples_per_epoch=72_000, source="--epochs", batches_per_epoch=720)
BEFORE = Pace("before", 100.0, 2.5)
AFTER = Pace("after", 400.0, 1.0)


def test_two_hours_become_half_an_hour() -> None:
    costs = [cost_of(pace, WORK.samples, PRICED) for pace in (BEFORE, AFTER)]
    assert [cost.seconds for cost in costs] == [7200.0, 1800.0]
    assert [cost.money for cost in costs] == pytest.approx([5.60, 1.40])
    assert [cost.joules for cost in costs] == [1_800_000.0, 720_000.0]
    assert [cost.grams_co2 for cost in costs] == pytest.approx([190.0, 76.0])
    assert cost_sentence(costs, WORK, 1, PRICED) == (
        "This training: 30 min instead of 2 h; at 2.80 $ an hour for each device: "
        "1.40 $ instead of 5.60 $; 0.200 kWh instead of 0.500 kWh; 76.0 g instead of 190 g of CO₂."
    )


def test_each_device_is_paid_for() -> None:
    (cost,) = [cost_of(Pace("x", 100.0, None, devices=4), 360_000, PRICED)]
    assert cost.money == pytest.approx(4 * 2.80)
    assert "4 devices" in cost_sentence([cost], None, 4, PRICED)


def test_without_a_price_nobody_speaks_of_money() -> None:
    costs = [cost_of(pace, WORK.samples, ReportConfig()) for pace in (BEFORE, AFTER)]
    said = cost_sentence(costs, WORK, 1, ReportConfig())
    assert "$" not in said
    assert "CO₂" not in said
    headings = [column.heading for column in cost_grid(costs, ReportConfig()).columns]
    assert headings == ["", "time", "energy"]


def test_without_measured_energy_nobody_speaks_of_co2() -> None:
    cost = cost_of(Pace("x", 100.0, None), 1000, PRICED)
    assert cost.joules is None
    assert cost.grams_co2 is None


def test_a_training_of_unknown_length_is_priced_by_samples() -> None:
    cost = cost_of(BEFORE, 1000, PRICED)
    assert cost_sentence([cost], None, 1, PRICED).startswith("1,000 samples: 10.0 s; ")
    assert "do not show how long" in basis_sentence(None)
    assert basis_sentence(WORK).startswith("10 epochs (--epochs) of 72,000 samples.")


def test_energy_is_in_kilowatt_hours_once_it_is_worth_it() -> None:
    assert energy_text(350.0) == "350 J"
    assert energy_text(7_200_000.0) == "2.00 kWh"
    assert energy_text(24_700.0) == "24.7 kJ"
    assert energy_text(24_700.0, beside=63_400.0) == "0.00686 kWh"
