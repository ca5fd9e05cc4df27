"""The only module that calls git. It reads repositories without changing them.

Every call is `git -C FOLDER` without a shell, in English, and without the user's hooks. Variables
that point git elsewhere are removed: inside a hook, GIT_DIR and its like name the hook's repository
and would answer for any folder. Settings given by variables stay (GIT_CONFIG_COUNT and its like,
with which containers allow a folder).
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpurun.errors import ExitCode, GpurunError
from gpurun.launch.process import die_with_parent

NO_REPOSITORY = "not a git repository"
REDIRECTING = frozenset(
    f"GIT_{name}"
    for name in (
        "ALTERNATE_OBJECT_DIRECTORIES", "COMMON_DIR", "CONFIG", "DIR", "EXTERNAL_DIFF",
        "GLOB_PATHSPECS", "GRAFT_FILE", "ICASE_PATHSPECS", "IMPLICIT_WORK_TREE", "INDEX_FILE",
        "INTERNAL_SUPER_PREFIX", "LITERAL_PATHSPECS", "NAMESPACE", "NOGLOB_PATHSPECS",
        "OBJECT_DIRECTORY", "PREFIX", "QUARANTINE_PATH", "REFLOG_ACTION", "REPLACE_REF_BASE",
        "SHALLOW_FILE", "WORK_TREE",
    )
)  # fmt: skip
"""Variables under which git looks at another repository, index or set of objects."""
SETTINGS = (
    "core.fsmonitor=false",
    f"core.hooksPath={os.devnull}",
    "advice.detachedHead=false",
    "submodule.recurse=false",  # a new worktree has none yet: `worktrees` fills them
)
SOURCES = ("*.py", "*.toml", "*.yaml", "*.yml", "*.json", "*.ini", "*.cfg")
"""Files that a launch reads as code or configuration, where git does not know them."""
FULL_HISTORY = "fetch it with git fetch --unshallow; in CI check out with fetch-depth: 0"


@dataclass(frozen=True)
class Revision:
    """A commit and the name under which it was found."""

    name: str
    commit: str


@dataclass(frozen=True)
class Repository:
    """A repository with a working tree: its top folder, and the folder of its objects and refs."""

    root: Path
    common: Path

    def head(self) -> str:
        """The commit of HEAD; `GpurunError` where there is none yet."""
        commit = self._commit("HEAD")
        if commit is None:
            raise incomparable(f"{self.root} has no commits yet", "commit, change it, and compare")
        return commit

    def branch(self) -> str | None:
        """The name of the branch, None where HEAD is detached (as CI checks out)."""
        done = self._ask("symbolic-ref", "--quiet", "--short", "HEAD")
        return done.stdout.strip() or None

    def changed_files(self) -> tuple[str, ...]:
        """Files under git that differ from HEAD, staged or not, relative to the root."""
        status = self.call("status", "--porcelain", "-z", "--untracked-files=no", "--no-renames")
        return tuple(entry[3:] for entry in _entries(status))

    def resolve(self, ref: str) -> Revision:
        """The commit that `ref` names: a branch, a tag or a commit, else a remote's branch.

        CI checks out one branch and knows the others only as `origin/main`. git itself would accept
        that for `main` if just one remote has it.
        """
        for name in (ref, *self._remote_branches(ref)):
            commit = self._commit(name)
            if commit is not None:
                return Revision(name, commit)
        raise self._unknown(ref)

    def merge_base(self, one: str, other: str) -> str:
        """The commit where two histories parted; `GpurunError` if the clone does not reach it."""
        done = self._ask("merge-base", one, other)
        if done.returncode == 0:
            return done.stdout.split()[0]
        what = f"{short(one)} and {short(other)} have no commit in common"
        if self.is_shallow():
            raise incomparable(f"{what}: this clone is shallow", FULL_HISTORY)
        raise incomparable(what, "name another REF")

    def first_parent(self, commit: str) -> str | None:
        """The first parent, None for a root commit; `GpurunError` where a shallow clone ends."""
        parent = self._commit(f"{commit}^1")
        if parent is not None:
            return parent
        header = self.call("cat-file", "commit", commit).partition("\n\n")[0]
        if "\nparent " not in header:  # as it is stored, whatever the clone lacks
            return None
        raise incomparable(
            f"this clone is shallow: it ends at {short(commit)}, before its parent", FULL_HISTORY
        )

    def commits_between(self, older: str, newer: str) -> tuple[str, ...]:
        """The commits after `older` up to and with `newer`, each after its parents."""
        return tuple(
            self.call("rev-list", "--topo-order", "--reverse", f"{older}..{newer}").split()
        )

    def line(self, commit: str) -> tuple[tuple[str, str], ...]:
        """The commits up to this one along first parents, oldest first, each with its subject."""
        form = ("--first-parent", "--no-show-signature", "-z", "--format=%H %s")
        text = self.call("log", *form, commit)
        pairs = (entry.partition(" ") for entry in reversed(_entries(text)))
        return tuple((sha, subject) for sha, _, subject in pairs)

    def descendants(self, commit: str, end: str) -> frozenset[str]:
        """The commits up to `end` that hold `commit`; none where `end` does not."""
        done = self._ask("rev-list", "--ancestry-path", f"{commit}..{end}")
        return frozenset(done.stdout.split()) if done.returncode == 0 else frozenset()

    def user(self) -> str | None:
        """Who git takes the user for: "name <address>", as far as that is configured."""
        asked = [self._ask("config", f"user.{key}").stdout.strip() for key in ("name", "email")]
        address = f"<{asked[1]}>" if asked[1] else ""
        return " ".join(filter(None, (asked[0], address))) or None

    def is_shallow(self) -> bool:
        """True if the clone ends before the history does."""
        return self.call("rev-parse", "--is-shallow-repository").strip() == "true"

    def call(self, *words: str) -> str:
        """The output of a git command; `GpurunError` with git's own reason if it fails."""
        return call_git(self.root, *words)

    def _ask(self, *words: str) -> subprocess.CompletedProcess[str]:
        return run_git(self.root, *words)

    def _commit(self, name: str) -> str | None:
        if not name:
            return None
        if name.startswith("-"):  # git would take it for a flag
            name = f"refs/heads/{name}"
        done = self._ask("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
        return done.stdout.strip() if done.returncode == 0 else None

    def _remote_branches(self, ref: str) -> tuple[str, ...]:
        done = self._ask("for-each-ref", "--format=%(refname:short)", f"refs/remotes/*/{ref}")
        found = tuple(done.stdout.split())
        return found if len(found) == 1 else ()

    def _unknown(self, ref: str) -> GpurunError:
        what = f"{self.root} has no branch, tag or commit {ref!r}"
        if self.is_shallow():
            return incomparable(f"{what}: this clone is shallow", FULL_HISTORY)
        cure = "git fetch brings what is missing; in CI check out with fetch-depth: 0"
        return GpurunError(what, cure)


def open_repository(folder: Path) -> Repository:
    """The repository that `folder` lies in; `GpurunError` says what keeps git from answering."""
    words = ("rev-parse", "--show-toplevel")
    done = run_git(folder, *words)
    if done.returncode == 0:
        common = run_git(folder, "rev-parse", "--git-common-dir").stdout.removesuffix("\n")
        root = Path(done.stdout.removesuffix("\n"))
        return Repository(root, Path(os.path.realpath(folder / common)))
    if "dubious ownership" in done.stderr:
        place = done.stderr.partition("repository at '")[2].partition("'")[0]
        raise GpurunError(
            f"git does not trust {place or folder}, because somebody else owns it",
            f"if you do: git config --global --add safe.directory {place or folder}",
        )
    if "must be run in a work tree" in done.stderr:
        raise GpurunError(f"{folder} has no working tree", "start gpurun in a checkout")
    if NO_REPOSITORY in done.stderr:
        raise GpurunError(
            f"{folder} is in no git repository", "start gpurun in a checkout of the script"
        )
    raise failure(words, done.stderr)


def is_in_repository(folder: Path) -> bool:
    """False if git says that there is none."""
    return NO_REPOSITORY not in run_git(folder, "rev-parse", "--git-dir").stderr


def source_files(folder: Path) -> list[str]:
    """Files below `folder` that git tracks, and modules and configurations that it does not ignore,
    relative to the folder; `GpurunError` if git fails."""
    found = []
    for choice in (("--recurse-submodules",), ("--others", "--exclude-standard", "--", *SOURCES)):
        found += _entries(call_git(folder, "ls-files", "-z", *choice))
    return found


def call_git(folder: Path, *words: str) -> str:
    """The output of a git command in `folder`; `GpurunError` with git's own reason if it fails."""
    done = run_git(folder, *words)
    if done.returncode:
        raise failure(words, done.stderr)
    return done.stdout


def run_git(
    folder: Path, *words: str, locks: Sequence[int] = ()
) -> subprocess.CompletedProcess[str]:
    """One git command in `folder`, finished, whatever its exit code.

    It is killed when this thread is. With `locks` (open files that git then holds as well) it runs
    to its end instead: git does not undo a worktree that is half made or removed.
    """
    settings = [word for setting in SETTINGS for word in ("-c", setting)]
    environment = {
        **without_redirection(os.environ),
        "LC_ALL": "C",
        "GIT_OPTIONAL_LOCKS": "0",  # `git status` would write the index anew
        "GIT_TERMINAL_PROMPT": "0",
    }
    try:
        return subprocess.run(
            ["git", "-C", os.fspath(folder), *settings, *words],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding=sys.getfilesystemencoding(),  # as the paths that python itself gives
            errors="surrogateescape",
            start_new_session=True,  # Ctrl-C is for us to act on, not for half a checkout
            preexec_fn=None if locks else functools.partial(die_with_parent, os.getpid()),
            pass_fds=locks,
            check=False,
        )
    except OSError as error:
        raise GpurunError(
            f"git cannot be run: {error.strerror}", "install git, which comparing commits needs"
        ) from None


def without_redirection(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without what points git to another repository, or makes it chat."""
    return {
        name: value
        for name, value in environment.items()
        if name not in REDIRECTING and not name.startswith("GIT_TRACE")
    }


def short(commit: str) -> str:
    """A commit as people write it."""
    return commit[:9]


def failure(words: tuple[str, ...], stderr: str) -> GpurunError:
    """The error for a failed git command, with its cause in one line."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    reason = next((line for line in lines if line.startswith(("fatal:", "error:"))), None)
    told = reason or (lines[-1] if lines else "it gave no reason")
    todo = "fix that"
    if " filter " in told:
        todo = "install that filter, or fetch its files first (git lfs fetch origin COMMIT)"
    return GpurunError(f"git {words[0]} failed: {told.strip()}", f"{todo}, and compare again")


def incomparable(what: str, todo: str) -> GpurunError:
    """The error where there is nothing to compare with."""
    return GpurunError(what, todo, ExitCode.NO_BASELINE)


def _entries(text: str) -> list[str]:
    return [entry for entry in text.split("\0") if entry]
