"""The patch that writes settings into the user's own source."""

from __future__ import annotations

import ast
import difflib
import io
import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpurun.eject.source_edits import SourceEdits
from gpurun.knobs.api import Knob
from gpurun.knobs.source_forms import (
    AfterImport,
    AfterOptimizer,
    AroundCalls,
    LoaderArgument,
    NoSynchronisation,
    OptimizerArgument,
    SourceForm,
)
from gpurun.records.events import KnobEvent, SourceSiteEvent
from gpurun.records.messages.source_sites import SiteKind

Edit = Callable[[Path, ast.Call], None]
"""Changes a call of a file."""
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


@dataclass
class PatchWriter:
    """Writes settings, one after the other. `script`: the main file; `within`: the folder that a
    patch may touch; `sites`: what a launch under the settings recorded."""

    script: Path
    within: Path
    sites: Sequence[SourceSiteEvent]
    args: tuple[str, ...]
    _edits: dict[Path, SourceEdits] = field(default_factory=dict)
    _keywords: dict[tuple[Path, ast.Call], dict[str, str]] = field(default_factory=dict)
    _after_model: dict[SourceSiteEvent, list[str]] = field(default_factory=dict)
    _knobs: list[str] = field(default_factory=list)
    _left_out: list[tuple[str, str]] = field(default_factory=list)
    _environment: dict[str, str] = field(default_factory=dict)

    def write(self, knob: Knob, value: Any, outcomes: Iterable[KnobEvent]) -> None:
        """One setting; `outcomes` of it in the launch under all settings."""
        seen = [event for event in outcomes if event.knob == knob.name]
        applied = [event.detail for event in seen if event.outcome == "applied"]
        revoked = [event.detail for event in seen if event.outcome in ("revoked", "failed")]
        if revoked or not applied:
            reason = (revoked or [event.detail for event in seen] or ["it had no effect"])[-1]
            self._left_out.append((knob.name, reason))
            return
        variables, args = knob.environment(value), knob.arguments(value, self.args)
        forms = knob.source_forms(value)
        if not forms and not variables and args == self.args:
            self._left_out.append((knob.name, NO_WORDS))
            return
        for form in forms:
            problem = self._form(form, applied)
            if problem is not None:
                self._left_out.append((knob.name, problem))
                return
        self._environment.update(variables)
        self.args = args
        self._knobs.append(knob.name)

    def finish(self) -> Ejected:
        """The patch."""
        for (path, call), values in self._keywords.items():
            self._edits[path].set_keywords(call, values)
        for site, statements in self._after_model.items():
            self._of(site).insert_after(site, statements)
        both = {path: (edits.before, edits.result()) for path, edits in self._edits.items()}
        files = {path: texts for path, texts in both.items() if texts[0] != texts[1]}
        for _, after in files.values():
            ast.parse(after)
        return Ejected(
            files, tuple(self._knobs), self._environment, self.args, tuple(self._left_out)
        )

    # -- one form ------------------------------------------------------------------------------

    def _form(self, form: SourceForm, applied: Sequence[str]) -> str | None:
        """Write a form; the reason if that cannot be done. A form is written whole or not."""
        if isinstance(form, LoaderArgument):
            keys = {detail.partition(": ")[0] for detail in applied}
            loaders = [site for site in self._sites(SiteKind.LOADER) if site.name in keys]
            return self._at_calls(loaders, "builds the loader", self._keyword(form))
        if isinstance(form, OptimizerArgument):
            built = self._sites(SiteKind.OPTIMIZER)
            return self._at_calls(built, "builds the optimizer", self._keyword(form))
        if isinstance(form, AroundCalls):
            return self._around_calls(form)
        if isinstance(form, NoSynchronisation):
            return self._drop_synchronisations()
        if isinstance(form, AfterOptimizer):
            return self._about_the_model(form)
        return self._after_import(form)

    def _keyword(self, form: LoaderArgument | OptimizerArgument) -> Edit:
        def note(path: Path, call: ast.Call) -> None:
            self._keywords.setdefault((path, call), {})[form.name] = form.value

        return note

    def _at_calls(
        self,
        sites: Sequence[SourceSiteEvent],
        what: str,
        edit: Edit,
    ) -> str | None:
        calls = [(site, self._call(site)) for site in sites]
        lost = [site for site, call in calls if call is None]
        if not sites or lost:
            where = f": {_shown(lost[0])}" if lost else ""
            return f"gpurun found no call in your own source that {what}{where}"
        for site, call in calls:
            assert call is not None
            edit(Path(site.file), call)
        return None

    def _around_calls(self, form: AroundCalls) -> str | None:
        sites = self._sites(SiteKind.ROOT_CALL)
        files = dict.fromkeys(site.file for site in sites)

        def wrap(path: Path, call: ast.Call) -> None:
            self._edits[path].wrap_call(call, form.function)

        problem = self._at_calls(sites, "calls the model", wrap)
        if problem is None:
            for file in files:
                text = f"\n\n{form.source}\n"
                self._edits[Path(file)].insert_after_imports(form.imports, text)
        return problem

    def _drop_synchronisations(self) -> str | None:
        sites = self._sites(SiteKind.SYNCHRONIZE)
        done = [edits is not None and edits.drop_statement(site) for site, edits in self._at(sites)]
        return None if done and all(done) else "a call of synchronize is part of a larger statement"

    def _about_the_model(self, form: AfterOptimizer) -> str | None:
        for site, edits in self._at(self._sites(SiteKind.MODEL)):
            if edits is not None and edits.takes_statement_after(site):
                statement = form.statement.format(model=site.name)
                self._after_model.setdefault(site, []).append(statement)
                return None
        return "gpurun found no line with a name for the model where its optimizer is built"

    def _after_import(self, form: AfterImport) -> str | None:
        edits = self._open(self.script)
        if edits is None:
            return f"{self.script.name} cannot be edited"
        edits.insert_after_imports(["import torch"], form.statement)
        return None

    # -- sites and files -----------------------------------------------------------------------

    def _sites(self, what: SiteKind) -> list[SourceSiteEvent]:
        return [site for site in self.sites if site.what is what]

    def _at(
        self, sites: Iterable[SourceSiteEvent]
    ) -> list[tuple[SourceSiteEvent, SourceEdits | None]]:
        return [(site, self._open(Path(site.file))) for site in sites]

    def _of(self, site: SourceSiteEvent) -> SourceEdits:
        return self._edits[Path(site.file)]

    def _call(self, site: SourceSiteEvent) -> ast.Call | None:
        edits = self._open(Path(site.file))
        return None if edits is None else edits.call_at(site)

    def _open(self, path: Path) -> SourceEdits | None:
        """The edits of a file; None if it lies outside of the user's folder or cannot be read."""
        if path not in self._edits:
            if not path.resolve().is_relative_to(self.within.resolve()):
                return None
            try:
                self._edits[path] = SourceEdits(path)
            except (OSError, ValueError):
                return None
        return self._edits[path]


def _shown(site: SourceSiteEvent) -> str:
    return f"{os.path.basename(site.file)}:{site.line}"


def _unified(name: str, before: bytes, after: bytes) -> str:
    old, new = (list(io.StringIO(text.decode(), newline="\n")) for text in (before, after))
    lines = difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )
