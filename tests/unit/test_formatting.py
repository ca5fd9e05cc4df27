"""Figures as text: readers compare them by eye, so digits, units and signs must be dependable."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from gpurun.formatting import knob_text, number_text
from gpurun.formatting.one_line import one_line
from gpurun.report.terminal_table import sparklines


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.01234, "0.0123"),
        (4.5678, "4.57"),
        (9.996, "10.0"),
        (78.94, "78.9"),
        (99.96, "100"),
        (999.6, "1,000"),
        (1234567.0, "1,234,567"),
        (-0.5, "-0.500"),
        (math.nan, "nan"),
    ],
)
def test_numbers_have_three_significant_digits_and_keep_their_integer_part(
    value: float, text: str
) -> None:
    assert number_text.number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (float("inf"), "inf s"),
        (0.34, "340 ms"),
        (12.34, "12.3 s"),
        (59.96, "1 min"),
        (125, "2 min 05 s"),
        (3599.7, "1 h"),
        (3720, "1 h 02 min"),
    ],
)
def test_durations_never_show_sixty_of_a_unit(seconds: float, text: str) -> None:
    assert number_text.duration(seconds) == text


@pytest.mark.parametrize(
    ("amount", "noun", "text"),
    [
        (1, "launch", "1 launch"),
        (2, "launch", "2 launches"),
        (3, "batch", "3 batches"),
        (2, "process", "2 processes"),
        (0, "pair", "0 pairs"),
        (12, "epoch", "12 epochs"),
        (1_234_567, "step", "1,234,567 steps"),
        (1.0, "core", "1 core"),
        (2.5, "core", "2.5 cores"),
    ],
)
def test_one_of_a_thing_is_told_as_one(amount: float, noun: str, text: str) -> None:
    assert number_text.count(amount, noun) == text


def test_no_other_place_makes_a_plural() -> None:
    own = re.compile(r"""\} ?\{?["']s?["'] if [^}]*== 1|== 1 else f?["'](\{\w+\} )?\w*s["']""")
    package = Path(number_text.__file__).parent.parent
    found = [path.name for path in package.rglob("*.py") if own.search(path.read_text())]
    assert found == ["number_text.py"]


def test_bytes_are_binary_and_never_take_four_digits() -> None:
    assert number_text.byte_size(512) == "512 B"
    assert number_text.byte_size(1.2 * 1024**3) == "1.20 GiB"
    assert number_text.byte_size(1023 * 1024**2) == "0.999 GiB"


def test_factors_percents_and_p_values_keep_their_meaning_at_the_edges() -> None:
    assert (number_text.factor(2.314), number_text.times(12.46), number_text.factor(0.983)) == (
        "×2.31",
        "12.5×",
        "×0.98",
    )
    assert number_text.percent(0.0001) == "< 0.1 %"
    assert number_text.percent(0.0) == "0.0 %"
    assert (number_text.signed_percent(0.007), number_text.signed_percent(-0.031)) == (
        "+0.7 %",
        "−3.1 %",
    )
    assert (
        number_text.p_value(0.0004),
        number_text.p_value(0.00001),
        number_text.p_value(0.27),
    ) == (
        "p = 0.0004",
        "p < 0.0001",
        "p = 0.27",
    )


def test_an_unbounded_interval_is_not_shown() -> None:
    assert number_text.interval((2.25, 2.371)) == "2.25–2.37"
    assert number_text.interval((0.0, math.inf)) is None
    assert number_text.interval(None) is None


def test_knobs_are_told_by_what_differs_from_the_baseline_with_the_last_change_in_sight() -> None:
    knobs = {"loader_workers": 8, "tf32": True, "batch": {"size": 64}, "compile": None}
    assert knob_text.knobs_text({}, {}) == "as it is"
    assert (
        knob_text.knobs_text(knobs, {"loader_workers": 8}) == "tf32, batch size=64, compile default"
    )
    assert knob_text.knobs_text({}, {"tf32": True}) == "without tf32"


def test_both_sparklines_share_one_scale_and_mark_what_is_not_a_number() -> None:
    low, high = sparklines(((0.0, 0.0), (1.0, math.nan, None)))
    assert low == "▁▁"
    assert high == "█! "


def test_foreign_text_loses_line_breaks_and_escape_codes() -> None:
    assert one_line("bad\n\x1b[31m thing") == "bad [31m thing"
    assert one_line("a long reason", 7) == "a long…"


def test_the_interval_of_a_change_that_says_nothing_is_left_out() -> None:
    assert number_text.change_interval(-0.031, 0.007) == "−3.1 % to +0.7 %"
    assert number_text.change_interval(-0.9999, 18995.0) == "undecided"
    assert number_text.change_interval(0.5, 9.0) == "+50.0 % to +900.0 %", (
        "wide, and yet no doubt of a gain"
    )
