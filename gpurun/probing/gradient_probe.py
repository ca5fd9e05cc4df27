"""Measures how the script's loss reduces before ranks start, and keeps the result."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpurun.arguments.options import Options
from gpurun.errors import GpurunError, Refused, ScriptFailed, say
from gpurun.isolation.available_modes import require
from gpurun.isolation.folder_removal import discard, discard_abandoned, hold, mark
from gpurun.isolation.isolation_mode import Mode
from gpurun.launch.error_in_output import out_of_memory
from gpurun.measure.fingerprint import command_fingerprint, differences
from gpurun.probing.batch_size_uses import batch_size_uses
from gpurun.probing.distributed_by_source import by_source
from gpurun.probing.mean_or_sum import ReductionVerdict, judge_reduction
from gpurun.probing.probe_launch import LIMIT_SECONDS, ProbeLaunch, ProbeRun
from gpurun.records.codec import from_json, to_json
from gpurun.records.record import record
from gpurun.records.spec import SEED, LossReduction, ProbeSpec
from gpurun.rundir import read_json, write_json

FOLDER_NAME = re.compile(r"[0-9a-f]{16}\.\d+")
"""Name of a probe's folder: that of its result, and the process that measures."""
SAY_REDUCTION = "set it with --loss-reduction mean or sum; gpurun then does not measure it"
HALVES = ("first", "second")
SIZES = (
    "in that line, take the number of samples from the batch, as in x.size(0); or run it without "
    "--ddp"
)
OF_SHELLS = ("_", "PWD", "OLDPWD", "SHLVL", "COLUMNS", "LINES")
OF_TERMINALS = ("SSH_", "TERM", "TMUX", "WINDOW")
"""Variables that differ from one shell to the next and say nothing to a training."""
SHOWN = 3
"""Lines that read the batch size."""
LAST_CHARACTERS = 20_000


@record
class StoredReduction:
    """The result of the probe. `seconds`: its duration.

    `residual`: by what part of the gradient halves of a batch differ from it; `remark`: lines for
    the user on what ranks do otherwise than one process, "" for none.

    `reduction` is None for a script that is distributed by itself. `files`: size and time of the
    last change (ns) of the files that it has read, None if they are not known.
    """

    reduction: LossReduction | None
    residual: float
    remark: str
    seconds: float
    fingerprint: dict[str, Any]
    files: dict[str, tuple[int, int] | None] | None = None

    def holds(self, fingerprint: dict[str, Any]) -> bool:
        """True if nothing that the script is made of has changed since."""
        if self.files is None or differences(fingerprint, self.fingerprint):
            return False
        return _stamps(self.files) == self.files


def reduction_of(
    options: Options, environment: Mapping[str, str], ranks: int, home: Path
) -> LossReduction | None:
    """The loss reduction: from the user, from an earlier measurement, or from the probe.

    None for a script that is distributed by itself. `Refused` where ranks cannot train the script;
    `ScriptFailed` where it fails by itself.
    """
    name = _name(options, ranks)
    place, folder = home / "probes" / f"{name}.json", home / "probes" / f"{name}.{os.getpid()}"
    fingerprint = {
        **command_fingerprint(options.typed, options.rank_words, options.knob_paths),
        "ranks": ranks,
        "environment_sha256": _digest(
            f"{k}={os.environ[k]}" for k in sorted(os.environ) if _matters(k)
        ),
    }
    found = _kept(place)
    if found is not None and found.holds(fingerprint):
        _tell(options, found, "measured before")
        return found.reduction
    held = _begin(folder.parent)
    folder.mkdir()
    mark(folder)
    try:
        found = _measure(options, environment, ranks, folder, fingerprint)
    finally:
        discard(folder)
        os.close(held)
    _tell(options, found, f"measured in {found.seconds:.1f} s, before any rank began")
    with suppress(OSError):
        write_json(place, to_json(found))
    return found.reduction


def _begin(probes: Path) -> int:
    """Remove the folders of killed probes; other processes do so only while nobody measures."""
    probes.mkdir(parents=True, exist_ok=True)
    discard_abandoned(probes, (p for p in probes.iterdir() if FOLDER_NAME.fullmatch(p.name)))
    return hold(probes)


def _stamps(files: Iterable[str]) -> dict[str, tuple[int, int] | None]:
    """Size and time of the last change of each file, None for one that is not there."""
    found: dict[str, tuple[int, int] | None] = dict.fromkeys(files)
    for name in found:
        with suppress(OSError):
            stat = os.stat(name)
            found[name] = stat.st_size, stat.st_mtime_ns
    return found


def _matters(variable: str) -> bool:
    """True if a variable of the environment may be one that the script reads."""
    return variable not in OF_SHELLS and not variable.startswith(OF_TERMINALS)


def _digest(words: Iterable[str]) -> str:
    text = "\0".join(words).encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest()[:16]


def _name(options: Options, ranks: int) -> str:
    said = "" if options.loss_reduction is None else options.loss_reduction.value
    script = str(Path(options.target.path).resolve())
    return _digest((script, *options.target.args, str(ranks), said))


def _kept(path: Path) -> StoredReduction | None:
    try:
        return from_json(StoredReduction, read_json(path))
    except (OSError, ValueError):
        return None


def _tell(options: Options, found: StoredReduction, when: str) -> None:
    if options.loss_reduction is not None:
        return  # nothing was measured
    for line in found.remark.splitlines():
        say(line)
    if not options.quiet and found.reduction is not None:
        taken = "ranks take it as" if found.remark else "the loss is"
        say(f"{taken} a {found.reduction.value} over samples ({when})")


# -- the launches ----------------------------------------------------------------------------------


def _measure(
    options: Options,
    environment: Mapping[str, str],
    ranks: int,
    folder: Path,
    fingerprint: dict[str, Any],
) -> StoredReduction:
    said = options.loss_reduction
    try:
        mode, _ = require(Path.cwd(), in_place=False)
    except GpurunError as error:
        if said is not None:
            return StoredReduction(said, 0.0, "", 0.0, fingerprint)
        raise Refused(
            f"the loss reduction cannot be measured: {error.what}", SAY_REDUCTION
        ) from None
    began = time.monotonic()
    probing = _Probing(options, environment, mode, folder, ranks)
    whole = probing.whole()
    read = None if whole is None or whole.probe is None else whole.probe.files
    # what only the probe has written is gone with its layer, and a part of no later run either
    files = None if read is None else _stamps(read)
    if whole is None or said is not None:
        return StoredReduction(said, 0.0, "", time.monotonic() - began, fingerprint, files)
    judgement = probing.judged(whole)
    uses = () if judgement.exact else _uses_of_batch_size(options, whole)
    what = f"{judgement.what}{_reads(uses)}"
    if judgement.reduction is None:
        raise Refused(what, SIZES if uses else judgement.todo)
    remark = "\n".join(filter(None, (what, _drawn_alike(whole))))
    seconds = time.monotonic() - began
    return StoredReduction(
        judgement.reduction, judgement.residual, remark, seconds, fingerprint, files
    )


@dataclass
class _Probing:
    """The launches of one probe."""

    options: Options
    environment: Mapping[str, str]
    mode: Mode
    folder: Path
    ranks: int

    def whole(self) -> ProbeRun | None:
        """The launch on whole batches; None for a script that is distributed by itself."""
        seen = self._start("whole", 0, 1).wait()
        if seen.refusal:
            raise _refused(seen.refusal, by_source(self.options.target))
        if seen.probe is not None and seen.probe.reason == "distributed":
            return None
        said = self.options.loss_reduction is not None
        if said and (seen.exit_code is None or out_of_memory(seen.log) is not None):
            return seen  # that one device cannot take it is why the user says it
        if seen.exit_code is None:
            raise Refused(
                f"no optimizer has stepped after {LIMIT_SECONDS:.0f} s: the loss reduction could "
                "not be measured",
                SAY_REDUCTION,
            )
        if seen.failed:
            if by_source(self.options.target) is not None:
                return None  # it needs ranks of its own to run at all
            if out_of_memory(seen.log) is not None:
                raise Refused(
                    "a whole batch needs more memory than one device has: the loss reduction "
                    "cannot be measured",
                    SAY_REDUCTION,
                )
            raise self._failed(seen)
        if seen.probe is not None and seen.probe.missed:
            again = self._start("again", 0, 1, seen.probe.loaders).wait()
            drawn = seen.probe.own_generator if again.probe is None else again.probe.own_generator
            seen = replace(again, probe=replace(seen.probe, own_generator=drawn))
        return seen

    def judged(self, whole: ProbeRun) -> ReductionVerdict:
        """The launches on the halves of each batch, beside each other, and the verdict."""
        loaders = () if whole.probe is None else whole.probe.loaders
        launches = [self._start(name, i, 2, loaders) for i, name in enumerate(HALVES)]
        try:
            halves = [launch.wait() for launch in launches]
        finally:
            for launch in launches:
                launch.close()
        for i, half in enumerate(halves):
            if out_of_memory(half.log) is not None:  # both at once may be too much for a device
                halves[i] = self._start(f"{HALVES[i]}-alone", i, 2, loaders).wait()
        for half in halves:
            if half.refusal:
                raise _refused(half.refusal)
            if half.exit_code is None:
                raise Refused(
                    f"a part of each batch did not train within {LIMIT_SECONDS:.0f} s: the loss "
                    "reduction could not be measured",
                    SAY_REDUCTION,
                )
            if half.failed:
                raise _half_failed(half, _uses_of_batch_size(self.options, whole))
        return judge_reduction(whole.gradients, halves[0].gradients, halves[1].gradients)

    def _start(
        self, name: str, start: int, step: int, loaders: tuple[str, ...] = ()
    ) -> ProbeLaunch:
        probe = ProbeSpec(start, step, self.ranks, SEED)
        folder = self.folder / name
        try:
            return ProbeLaunch(self.options, self.environment, self.mode, folder, probe, loaders)
        except GpurunError as error:
            what = f"the loss reduction could not be measured: {error.what}"
            raise Refused(what, SAY_REDUCTION) from None

    def _failed(self, seen: ProbeRun) -> ScriptFailed:
        """Show how the script ended, as it would have shown it itself."""
        with suppress(OSError):
            text = seen.log.read_text(errors="replace").replace("\r\n", "\n")
            sys.stderr.write(text[-LAST_CHARACTERS:])
        what = "the script failed on one device, before any rank began"
        return ScriptFailed(what, seen.exit_code or 1)


def _refused(told: str, own: str | None = None) -> Refused:
    """The refusal of the script's process. `own`: by what it seems to distribute itself."""
    what, _, todo = told.partition("\n")
    if own is not None and "--nproc-per-node" not in todo:
        todo = (
            f"{own}: if it distributes itself, run gpurun --nproc-per-node N without --ddp; else "
            f"{todo}"
        )
    return Refused(what, todo)


def _uses_of_batch_size(options: Options, whole: ProbeRun) -> tuple[str, ...]:
    """Lines of the script that read its batch size, if it has a name, outside of DataLoaders."""
    training = () if whole.probe is None else whole.probe.loaders
    expressions = {
        loader.batch_size_argument
        for loader in whole.loaders
        if loader.key in training and loader.batch_size_argument is not None
    }
    script, names = Path(options.target.path), sorted(x for x in expressions if not x.isdigit())
    return tuple(line for name in names for line in batch_size_uses(script, name) or ())


def _reads(uses: tuple[str, ...]) -> str:
    return f"; the script reads its batch size at {' and at '.join(uses[:SHOWN])}" if uses else ""


def _drawn_alike(whole: ProbeRun) -> str:
    """A remark on numbers that all ranks draw alike, "" for none."""
    line = "" if whole.probe is None else whole.probe.own_generator
    if not line:
        return ""
    return (
        f"at {line} the script draws from a generator of its own: every rank draws the same "
        "numbers for its share of a batch, where one process draws others for each sample"
    )


def _half_failed(half: ProbeRun, uses: tuple[str, ...]) -> Refused:
    probe = half.probe
    where = "" if probe is None or not probe.where else f" at {probe.where}"
    error = "" if probe is None or not probe.error else f" ({probe.error})"
    return Refused(
        f"a part of a batch cannot be computed{where}{error}{_reads(uses)}",
        SIZES,
    )
