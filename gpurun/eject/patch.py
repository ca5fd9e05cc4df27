"""The patch that writes settings into the user's own source."""

from __future__ import annotations

import ast
import difflib
import io
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpurun.eject.source_edits import SourceEdits
from gpurun.knobs.api import Knob
from gpurun.knobs.source_forms import (
    AfterOptimizer,
    AroundCalls,
    AroundLoaders,
    LoaderArgument,
    NoSynchronisation,
    OptimizerArgument,
    SourceForm,
)
from gpurun.records.events import RUNTIME_ONLY, KnobEvent, SourceSiteEvent
from gpurun.records.messages.training_events import SiteKind

NO_WORDS = "torch has no words for it: it works only under gpurun"


@dataclass(frozen=True)
class Ejected:
    """Settings as a patch. `files`: before and after, by absolute path. `knobs`: those written.

    `environment`, `args`: of the command that goes with the patch. `left_out`: (knob, reason).
    """

    files: Mapping[Path, tuple[bytes, bytes]]
    knobs: tuple[str, ...]
    environment: Mapping[str, str]
    args: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...]

    def diff(self, folder: Path) -> str:
        """A unified diff with paths relative to `folder`, for `git apply` and `patch -p1`."""
        return "".join(
            _unified(os.path.relpath(path, folder), *both) for path, both in self.files.items()
        )

    def command(self, script: str) -> str:
        """How the patched script is started."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*variables, "python", shlex.join([script, *self.args])])


UNWRITABLE = ("revoked", "failed", RUNTIME_ONLY)
"""Outcomes of a knob that the patch leaves out, even where it was applied."""


@dataclass
class PatchWriter:
    """Writes settings, one after the other. `script`: the main file; `within`: the folder that a
    patch may touch; `sites`: what a launch under the settings recorded."""

    script: Path
    within: Path
    sites: Sequence[SourceSiteEvent]
    args: tuple[str, ...]
    _edits: dict[Path, SourceEdits] = field(default_factory=dict)
    _knobs: list[str] = field(default_factory=list)
    _left_out: list[tuple[str, str]] = field(default_factory=list)
    _environment: dict[str, str] = field(default_factory=dict)

    def write(self, knob: Knob, value: Any, outcomes: Iterable[KnobEvent]) -> None:
        """One setting, whole or not at all; `outcomes` of it in the launch under all settings."""
        seen = [event for event in outcomes if event.knob == knob.name]
        applied = [event.detail for event in seen if event.outcome == "applied"]
        revoked = [event.detail for event in seen if event.outcome in UNWRITABLE]
        if revoked or not applied:
            reason = (revoked or [event.detail for event in seen] or ["it had no effect"])[-1]
            self._left_out.append((knob.name, reason))
            return
        variables, args = knob.environment(value), knob.arguments(value, self.args)
        forms = knob.source_forms(value)
        if not forms and not variables and args == self.args:
            self._left_out.append((knob.name, NO_WORDS))
            return
        copies = {path: edits.copy() for path, edits in self._edits.items()}
        setting = _SettingForms(self.script, self.within, self.sites, applied, copies)
        try:
            setting.write(forms)
        except ValueError as error:
            self._left_out.append((knob.name, str(error)))
            return
        self._edits = setting.edits
        self._environment.update(variables)
        self.args = args
        self._knobs.append(knob.name)

    def finish(self) -> Ejected:
        """The patch."""
        both = {path: (edits.before, edits.result()) for path, edits in self._edits.items()}
        files = {path: texts for path, texts in both.items() if texts[0] != texts[1]}
        return Ejected(
            files, tuple(self._knobs), self._environment, self.args, tuple(self._left_out)
        )


@dataclass
class _SettingForms:
    """The forms of one setting, written into `edits`, copies of those of the settings before it.

    `applied`: the details with which the knob said that it took effect. A form that cannot be
    written is a `ValueError` with the reason.
    """

    script: Path
    within: Path
    sites: Sequence[SourceSiteEvent]
    applied: Sequence[str]
    edits: dict[Path, SourceEdits]
    _defined: set[tuple[str, str]] = field(default_factory=set)

    def write(self, forms: Sequence[SourceForm]) -> None:
        """Write all of them."""
        for form in forms:
            self._form(form)
        for path, edits in self.edits.items():
            try:
                edits.result()
            except ValueError as error:
                raise ValueError(f"{path.name} would be no source: {error}") from None

    def _form(self, form: SourceForm) -> None:
        if isinstance(form, LoaderArgument):
            self._argument(SiteKind.LOADER, "builds the loader", form)
        elif isinstance(form, OptimizerArgument):
            self._argument(SiteKind.OPTIMIZER, "builds the optimizer", form)
        elif isinstance(form, AroundCalls):
            self._around_calls(form)
        elif isinstance(form, AroundLoaders):
            for site, call in self._taken(SiteKind.LOADER, "builds the loader", form.outcome):
                self._open(Path(site.file)).wrap_value(call, form.function)
                self._define(site.file, form)
        elif isinstance(form, NoSynchronisation):
            self._drop_synchronisations()
        elif isinstance(form, AfterOptimizer):
            self._about_the_model(form)
        else:
            self._open(self.script).insert_after_imports(["import torch"], form.statement)

    def _argument(
        self, kind: SiteKind, what: str, form: LoaderArgument | OptimizerArgument
    ) -> None:
        for site, call in self._taken(kind, what):
            self._open(Path(site.file)).set_keywords(call, {form.name: form.value})

    def _taken(
        self, kind: SiteKind, what: str, outcome: str = ""
    ) -> Iterable[tuple[SourceSiteEvent, ast.Call]]:
        """The calls that build all on which the knob took effect, each once."""
        applied = [detail for detail in self.applied if detail.endswith(outcome)]
        names = {_uncounted(detail.partition(": ")[0]) for detail in applied}
        sites = [site for site in self._sites(kind) if _uncounted(site.name) in names]
        for name in sorted(names - {_uncounted(site.name) for site in sites}):
            raise ValueError(f"gpurun found no call in your own source that {what}: {name}")
        return {call: (site, call) for site in sites for call in [self._call(site, what)]}.values()

    def _around_calls(self, form: AroundCalls) -> None:
        what = "calls the model"
        for site in self._some_sites(SiteKind.ROOT_CALL, what):
            self._open(Path(site.file)).wrap_call(self._call(site, what), form.function)
            self._define(site.file, form)

    def _define(self, file: str, form: AroundCalls | AroundLoaders) -> None:
        """The function of a form, once in a file."""
        if (file, form.function) not in self._defined:
            self._defined.add((file, form.function))
            text = f"\n\n{form.source}\n"
            self._open(Path(file)).insert_after_imports(form.imports, text)

    def _drop_synchronisations(self) -> None:
        for site in self._some_sites(SiteKind.SYNCHRONIZE, "synchronizes"):
            if not self._open(Path(site.file)).drop_statement(site):
                raise ValueError(f"synchronize is part of a larger statement: {_shown(site)}")

    def _about_the_model(self, form: AfterOptimizer) -> None:
        """A statement about each root module, at the first of its places that takes one."""
        sites = self._sites(SiteKind.MODEL)
        usable = [site for site in sites if self._takes(site)]
        best = [next((x for x in usable if x.root == r), None) for r in {x.root for x in sites}]
        if not best or None in best:
            raise ValueError("gpurun found no line with a name for the model and its optimizer")
        for site in dict.fromkeys(replace(x, root=0) for x in best if x is not None):
            statement = form.statement.format(model=site.name)
            self._open(Path(site.file)).insert_after(site, statement)

    # -- sites and files -----------------------------------------------------------------------

    def _sites(self, what: SiteKind) -> list[SourceSiteEvent]:
        return [site for site in self.sites if site.what is what]

    def _some_sites(self, kind: SiteKind, what: str) -> list[SourceSiteEvent]:
        sites = self._sites(kind)
        if not sites:
            raise ValueError(f"gpurun found no call in your own source that {what}")
        return sites

    def _call(self, site: SourceSiteEvent, what: str) -> ast.Call:
        call = self._open(Path(site.file)).call_at(site)
        if call is None:
            raise ValueError(f"gpurun found no call that {what}: {_shown(site)}")
        return call

    def _takes(self, site: SourceSiteEvent) -> bool:
        with suppress(ValueError):
            return self._open(Path(site.file)).takes_statement_after(site)
        return False

    def _open(self, path: Path) -> SourceEdits:
        """The edits of a file."""
        if path not in self.edits:
            if not path.resolve().is_relative_to(self.within.resolve()):
                raise ValueError(f"{path} lies outside of {self.within}")
            try:
                self.edits[path] = SourceEdits(path)
            except (OSError, ValueError) as error:
                raise ValueError(f"{path.name} cannot be edited: {error}") from None
        return self.edits[path]


def _uncounted(name: str) -> str:
    """A loader's place without its count there; an optimizer's class as it is."""
    return name.rsplit("#", 1)[0]


def _shown(site: SourceSiteEvent) -> str:
    return f"{os.path.basename(site.file)}:{site.line}"


def _unified(name: str, before: bytes, after: bytes) -> str:
    old, new = (list(io.StringIO(text.decode(), newline="\n")) for text in (before, after))
    lines = difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )
