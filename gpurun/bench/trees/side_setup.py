"""What a side needs beside its commit: untracked files, copied from the user's tree, and a setup
command (`pip install -e .`, `make`) in a python environment of its own.

Both sides' setup commands may install, and one environment can hold only one of two trees. So each
side gets a small one on top of the user's, whose packages it shows, except installs of the compared
tree. Setup commands install into it, and the user's environment stays as it is.
"""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sysconfig
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gpurun.bench.trees.installed_packages import Tree, leads_to
from gpurun.errors import ExitCode, GpurunError
from gpurun.launch.exit_code import exit_code_of
from gpurun.records.script_arguments import masked_text
from gpurun.rundir import FOLDER

FIRST = "~0.pth"
"""Path files are read in the order of their names: after whatever a setup command installs."""
PIP = '#!/bin/sh\nexec "$(dirname "$0")/python" -m pip "$@"\n'
"""The user's own `pip` would install into the user's environment."""
LAST_LINES = 3
"""Lines of its output that a message repeats: about what fits on a screen's line."""
GUARDED = (
    "exec 3<&0 </dev/null; { read -r word <&3 || kill -s KILL 0; } & "
    '/bin/sh -c "$0" 3<&-; code=$?; kill $!; exit $code'
)
"""Runs $0 beside a process that kills the whole group once our end of its standard input closes.

If gpurun is killed, the kernel would tell the shell alone, and not what the shell has started."""


def run_setup(
    command: str, side: str, folder: Path, environment: Mapping[str, str], logs: Path
) -> None:
    """Run `command` by the shell in `folder`, its output to `setup-<side>.log` in `logs`.

    `GpurunError` tells the last lines of one that fails: a commit that does not build. If gpurun is
    interrupted or killed, the command ends with all processes that it started.
    """
    log = logs / f"setup-{side}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    reader, writer = os.pipe()
    with (
        open(writer, "wb") as alive,
        open(reader, "rb") as stdin,
        log.open("wb") as output,
        subprocess.Popen(
            ["/bin/sh", "-c", GUARDED, command],
            cwd=folder,
            env=dict(environment),
            stdin=stdin,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as child,
    ):
        try:
            code = exit_code_of(child.wait())
        finally:
            alive.close()
    if code:
        with log.open(encoding="utf-8", errors="replace") as lines:
            last = deque((" ".join(line.split()) for line in lines if line.strip()), LAST_LINES)
        words = " | ".join(last) if last else "it wrote nothing"
        what = f"setup failed on the {side} side: {command!r} ended with {code}: {words}"
        what = masked_text(what, command.split())
        raise GpurunError(what, f"its whole output is in {log}", ExitCode.BENCHMARK_FAILED)


def make_environment(folder: Path, hidden: Tree) -> Path:
    """Make the environment in `folder` and return its python.

    Editable installs of the tree `hidden` are not seen through it: they would come before an
    install of another kind that the setup command makes.
    """
    import venv

    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    base = {"base": str(folder), "platbase": str(folder)}
    own = Path(sysconfig.get_path("purelib", "posix_prefix", base))
    own.mkdir(parents=True, exist_ok=True)
    below = _sites()
    (own / FIRST).write_text("".join(f"{place}\n" for place in below))
    path_files = [path for place in below for path in sorted(place.glob("*.pth"))]
    for number, path in enumerate(path_files, start=1):
        if leads_to(path, hidden.holds) is None:
            (own / f"~{number:04}-{path.name}").write_text(_absolute(path))
    for name in ("pip", "pip3"):
        script = folder / "bin" / name
        script.write_text(PIP)
        script.chmod(0o755)
    return folder / "bin" / "python"


def activated(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The variables of a shell in which the environment in `folder` is activated."""
    path = os.pathsep.join(filter(None, (str(folder / "bin"), environment.get("PATH", ""))))
    kept = {name: value for name, value in environment.items() if name != "PYTHONHOME"}
    return {**kept, "VIRTUAL_ENV": str(folder), "PATH": path}


def _sites() -> list[Path]:
    users = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return [path for path in map(Path, (*users, *site.getsitepackages())) if path.is_dir()]


def _absolute(path: Path) -> str:
    """The text of a path file, for another folder: its paths may be relative to its own."""
    lines = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        word = line.strip()
        literal = not word or word.startswith(("#", "import ", "import\t"))
        lines.append(line if literal else str(path.parent / word))
    return "".join(f"{line}\n" for line in lines)


def copy_needed(patterns: Sequence[str], source: Path, target: Path, tree: Tree) -> None:
    """Copy what the glob `patterns` match in `source` to the same places in `target`, in `tree`.

    Files that `target` has already are of its own commit, and stay. A link stays a link (one that
    leaves the folder is made absolute), so that a large data set need not be copied.
    """
    files: dict[Path, Path] = {}
    for pattern in patterns:
        found = list(_matches(pattern, source))
        if not found:
            raise GpurunError(
                f"[bench] needed: nothing in {source} matches {pattern!r}",
                "make it, or take it out of needed",
            )
        copies = {path: target / path.relative_to(source) for path in found}
        files |= {path: copy for path, copy in copies.items() if not os.path.lexists(copy)}
    for path, copy in files.items():
        if os.path.lexists(copy):  # behind a link that was copied just now
            continue
        if not tree.holds(copy.parent):
            raise GpurunError(
                f"[bench] needed: {copy.relative_to(target)} of the other commit lies behind a link"
                f" to {os.path.realpath(copy.parent)}, outside of its tree",
                "take it out of needed: both sides find that place as it is",
            )
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink():
            copy.symlink_to(_link_target(path, source))
        else:
            shutil.copy2(path, copy)


def _matches(pattern: str, source: Path) -> Iterator[Path]:
    """Files and links; of a folder that matches, all that is in it."""
    if os.path.isabs(pattern) or ".." in Path(pattern).parts or not pattern.strip():
        raise GpurunError(
            f"[bench] needed: {pattern!r} is no path inside of {source}",
            "name files of the repository; both sides find files outside it in the same place",
        )
    try:
        matches = sorted(source.glob(pattern))
    except ValueError as error:
        raise GpurunError(f"[bench] needed: {pattern!r}: {error}", "see pathlib's glob") from None
    for match in matches:
        if match.is_symlink() or match.is_file():
            yield match
            continue
        for place, names, files in os.walk(match):
            names[:] = [name for name in names if name not in (FOLDER, ".git")]
            linked = [name for name in names if os.path.islink(os.path.join(place, name))]
            yield from (Path(place, name) for name in (*linked, *files))


def _link_target(link: Path, source: Path) -> str:
    text = os.readlink(link)
    absolute = Path(os.path.normpath(link.parent / text))
    inside = not os.path.isabs(text) and absolute.is_relative_to(source)
    return text if inside else str(absolute)
