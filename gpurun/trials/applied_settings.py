"""Settings made ready for a launch: what each knob asks of the environment and of the arguments."""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpurun.arguments.gpurun_toml_keys import type_in_words
from gpurun.errors import GpurunError
from gpurun.knobs import all_knobs, find
from gpurun.knobs.api import Knob
from gpurun.records.codec import RecordError, from_json
from gpurun.records.spec import Setting
from gpurun.records.tuning import SavedSettings
from gpurun.trials import knob_calls
from gpurun.trials.knob_calls import KnobRaised


@dataclass(frozen=True)
class AppliedSettings:
    """Settings made ready for a launch. `args`: the script's arguments under them.

    `environment`: the variables that they set. `training_loaders`: as `RunSpec` has them.
    `notes`: lines that the user of such settings should read.
    """

    settings: Mapping[str, Any]
    args: tuple[str, ...]
    environment: Mapping[str, str]
    training_loaders: tuple[str, ...] = ()
    knob_paths: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def turned(self) -> tuple[Setting, ...]:
        """The settings as a spec lists them."""
        return tuple(Setting(name, value) for name, value in self.settings.items())


def applied_settings(
    saved: SavedSettings,
    source: str,
    args: tuple[str, ...],
    knob_paths: Sequence[str],
    allow: Sequence[str],
) -> AppliedSettings:
    """`saved` settings on top of the script's `args`; `GpurunError` begins with their `source`.

    Refused are a knob that there is not, one whose effect is not among `allow`, and a value that
    its knob cannot take.
    """
    all_knobs(knob_paths)  # a broken one is not the settings' fault
    environment: dict[str, str] = {}
    notes = []
    if not saved.fingerprint:
        notes.append(f"{source} has no fingerprint: not checked against this machine")
    for name, value in saved.settings.items():
        try:
            knob = find(name, knob_paths, saved.tuned_arguments)
        except GpurunError as error:
            raise GpurunError(f"{source}: {error.what}", error.todo) from None
        _check_allowed(name, knob.effect.value, tuple(allow))
        if knob.changes_steps:
            notes.append(
                f"{name} changes the number of optimizer steps; a schedule that the script builds "
                "for a fixed number of steps is not adapted"
            )
        try:
            _check_type(knob, value)
            variables, args = knob_calls.outside(knob, value, args)
        except KnobRaised as error:
            raise GpurunError(
                f"{source}: {name} cannot take {value!r} ({error})",
                "take it out, or write the file anew with gpurun --optimize --save-settings FILE",
            ) from error
        environment |= variables
    return AppliedSettings(
        saved.settings,
        args,
        environment,
        saved.training_loaders,
        tuple(knob_paths),
        tuple(notes),
    )


def _check_allowed(name: str, effect: str, allowed: tuple[str, ...]) -> None:
    """A change of the training needs the same consent whichever way it comes."""
    if effect not in allowed:
        raise GpurunError(
            f"{name} is a {effect} change, which is not allowed",
            f"add --allow {','.join((*allowed, effect))}, or drop the setting",
        )


def _check_type(knob: Knob, value: Any) -> None:
    """`KnobRaised` unless `apply` takes a value of this type, as far as its annotation tells."""
    try:
        kind = typing.get_type_hints(knob.apply).get("value")
    except Exception:  # a user's knob may name a type that only a type checker sees
        return
    if kind not in (bool, int, float, str):
        return
    try:
        from_json(kind, value)
    except RecordError:
        raise KnobRaised(f"TypeError: it takes {type_in_words(kind)}") from None
