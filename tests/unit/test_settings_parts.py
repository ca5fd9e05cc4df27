"""Settings without some knobs, and the parts into which they can be taken apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpurun.arguments.settings_file import without
from gpurun.commands.blame import parts_of
from gpurun.errors import GpurunError
from gpurun.records.tuning import SavedSettings

CHOSEN = {
    "tf32": True, "loader_workers": 2, "cpu_threads": 1, "loader_pin_memory": True,
    "device_prefetch": "batches", "loader_buffers": "shared",
}  # fmt: skip
COMPANIONS = {
    "loader_workers": ("cpu_threads",),
    "device_prefetch": ("loader_pin_memory",),
    "loader_buffers": ("loader_pin_memory",),
}
SAVED = SavedSettings(CHOSEN, (), 2.0, {"gpu": "x"}, ("train.py",), companions=COMPANIONS)


def left(*knobs: str) -> set[str]:
    return set(without(SAVED, knobs)[0].settings)


def test_a_setting_made_for_the_sake_of_another_goes_with_it() -> None:
    rest, others = without(SAVED, ["loader_workers"])
    assert others == ("cpu_threads",)
    assert set(rest.settings) == set(CHOSEN) - {"loader_workers", "cpu_threads"}


def test_a_companion_goes_alone() -> None:
    assert left("cpu_threads") == set(CHOSEN) - {"cpu_threads"}
    assert left("loader_pin_memory") == set(CHOSEN) - {"loader_pin_memory"}


def test_a_companion_that_another_knob_needs_stays() -> None:
    assert left("device_prefetch") == set(CHOSEN) - {"device_prefetch"}
    assert left("device_prefetch", "loader_buffers") == {"tf32", "loader_workers", "cpu_threads"}


def test_no_speedup_is_promised_for_the_rest_of_the_settings() -> None:
    rest, _ = without(SAVED, ["tf32"])
    assert rest == replace(SAVED, settings=rest.settings, speedup=None)


def test_a_knob_that_is_not_set_is_refused_with_those_that_are() -> None:
    with pytest.raises(GpurunError) as refused:
        without(SAVED, ["compile"])
    assert refused.value.what == "--without compile: it is not set"
    assert refused.value.todo == f"set are: {', '.join(CHOSEN)}"


def test_parts_keep_together_what_goes_together() -> None:
    assert parts_of(SAVED) == (
        ("tf32",),
        ("loader_workers", "cpu_threads"),
        ("loader_pin_memory", "device_prefetch", "loader_buffers"),
    )


def test_settings_written_by_hand_are_parts_of_their_own() -> None:
    assert parts_of(replace(SAVED, companions={})) == tuple((name,) for name in CHOSEN)
