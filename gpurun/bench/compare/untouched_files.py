"""A commit that changes nothing of what the benchmark opens passes without a launch.

Only where a record of the baseline on this machine lists every file that its launches opened. What
could matter in another way (manifests of packages, links, submodules, files that come or go) has
the benchmark launched.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import PurePosixPath

from gpurun.bench.benchmarks import Benchmark
from gpurun.bench.record_of_launches import TURNED, users_side
from gpurun.bench.trees.git import Repository
from gpurun.formatting.number_text import count
from gpurun.measure.fingerprint import fingerprint
from gpurun.records.bench.benchmark import BenchmarkFingerprint, BenchmarkRecord
from gpurun.records.script_arguments import masked, secrets_digest

MANIFESTS = (
    "pyproject.toml", "setup.py", "setup.cfg", "requirements*", "constraints*", "*.lock", "Pipfile",
    "environment*.yml", "environment*.yaml", "conda*", "Dockerfile*", ".python-version", "*.pth",
    "gpurun.toml", "sitecustomize.py", "usercustomize.py",
)  # fmt: skip
"""Files that decide what is installed or launched, whether or not a launch opens them."""
DOCUMENTS = (".md", ".rst")
"""Files that may come and go in a folder of which nothing was opened."""
PLAIN = ("100644", "100755")


@dataclass(frozen=True)
class ChangedFile:
    """A file that differs from the baseline's. `plain`: a regular file before and now."""

    path: str
    plain: bool


def untouched(
    benchmark: Benchmark,
    repository: Repository,
    baseline: str,
    records: Iterable[BenchmarkRecord],
) -> str | None:
    """Why the working tree passes without a launch, in one line; None: it must be launched.

    `baseline`: the commit. `records`: those of the benchmark, oldest first.
    """
    if benchmark.setup is not None:
        return None
    usable = [one for one in records if one.commit == baseline and _fits(one, benchmark)]
    if not usable:
        return None
    record = usable[-1]
    changed = changed_files(repository, baseline)
    opened = frozenset(record.files_opened or ())
    if not all(_is_apart(file, opened) for file in changed):
        return None
    return (
        f"passed without a launch: none of {count(len(changed), 'changed file')} is among the "
        f"{len(opened):,} that the benchmark opened at the baseline (record {record.id})"
    )


def changed_files(repository: Repository, baseline: str) -> tuple[ChangedFile, ...]:
    """All that differs between a commit and the working tree, files that git does not know yet
    among them."""
    words = repository.call("diff", "--raw", "-z", "--no-renames", "--no-abbrev", baseline)
    fields = words.split("\0")
    found = []
    for told, path in zip(fields[::2], fields[1::2], strict=False):
        before, now = told.lstrip(":").split()[:2]
        found.append(ChangedFile(path, before in PLAIN and now in PLAIN))
    others = repository.call("ls-files", "--others", "--exclude-standard", "-z")
    return (*found, *(ChangedFile(path, False) for path in others.split("\0") if path))


def _is_apart(file: ChangedFile, opened: frozenset[str]) -> bool:
    """True if a change of this file cannot reach the benchmark."""
    path = PurePosixPath(file.path)
    if file.path in opened or any(fnmatch(path.name, one) for one in MANIFESTS):
        return False
    if file.plain:
        return True
    folders = {str(PurePosixPath(one).parent) for one in opened}
    return path.suffix in DOCUMENTS and str(path.parent) not in folders


def _fits(record: BenchmarkRecord, benchmark: Benchmark) -> bool:
    """True if the record is of the same command on this machine as it is, and lists its files."""
    command = (masked(benchmark.args), secrets_digest(benchmark.args), benchmark.script)
    if record.files_opened is None or record.error is not None or record.dirty is not False:
        return False
    if (record.args, record.secrets_sha256, record.script) != command:
        return False
    variables = users_side(benchmark).variables
    settings = {name: variables[name] for name in TURNED if name in variables}
    return record.fingerprint.settings == settings and _is_here(record.fingerprint, benchmark)


def _is_here(measured: BenchmarkFingerprint, benchmark: Benchmark) -> bool:
    """True if it is this machine's with its software. The wheel's name of a build ("+cu130") is
    left out: packages do not tell it."""
    here = fingerprint((), benchmark.folder, None)
    devices = set(here["gpus"]) or {here["cpu"]}
    driver = here["driver"] if here["gpus"] else None
    builds = [(version or "").partition("+")[0] for version in (measured.torch, here["torch"])]
    return measured.device in devices and measured.driver == driver and builds[0] == builds[1]
