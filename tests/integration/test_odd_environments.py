"""Names, folders, encodings and signals that are rare: a run as under python, or one clear line."""

from __future__ import annotations

import ast
import builtins
import itertools
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpurun.launch.launch_command import BOOTSTRAP
from tests.conftest import REPOSITORY, Gpurun
from tests.integration.launched import obey_permissions, start, wait_for

SCRIPT = "import sys; print('ran', *map(ascii, sys.argv[1:]))\n"
ODD = os.fsdecode(b"odd\xff\xe9")
"""A name that is no UTF-8."""
ORDINARY = ("unshare", "--user", "--map-user=12345", "--map-group=12345")
"""Another user than the owner of files, without an entry in passwd."""


def script(folder: Path, name: str = "train.py", text: str = SCRIPT) -> str:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return name


def told(done: subprocess.CompletedProcess[bytes]) -> list[str]:
    return done.stderr.decode().splitlines()


# -- names ---------------------------------------------------------------------------------------


@pytest.mark.forked
@pytest.mark.parametrize("where", ["argument", "script", "folder"])
def test_a_byte_that_is_no_text_stops_nothing(where: str, tmp_path: Path, gpurun: Gpurun) -> None:
    folder = tmp_path / (ODD if where == "folder" else "plain")
    name = script(folder, f"{ODD}.py" if where == "script" else "train.py")
    words = (name, *([ODD] if where == "argument" else []))
    assert gpurun(*words, cwd=folder).returncode == 0
    tuned = gpurun("--optimize", "--tune-only", "--json", "t.json", *words, cwd=folder)
    assert tuned.returncode == 5  # nothing trains
    for command in (["report", "--markdown", "run.md"], ["--tuned", *words], ["bench", "history"]):
        done = gpurun(*command, cwd=folder)
        assert done.returncode in (0, 2, 4)
        assert "internal error" not in done.stderr.decode()
    assert (folder / "run.md").read_text()


def test_a_line_break_in_a_name_makes_no_line_of_ours(tmp_path: Path, gpurun: Gpurun) -> None:
    folder = tmp_path / "a\nverdict=ok exit=0\x1b[2J"
    folder.mkdir()
    done = gpurun("report", "--out", str(folder), "run\n\x1b[31m", cwd=tmp_path)
    assert done.returncode == 2
    assert b"\x1b" not in done.stderr
    assert [line for line in told(done) if line.startswith("verdict=")] == ["verdict=error exit=2"]
    assert r"run\n\x1b[31m" in told(done)[0]


def test_a_script_whose_name_begins_with_a_dash_runs(tmp_path: Path, gpurun: Gpurun) -> None:
    done = gpurun("--", script(tmp_path, "-t.py"), "-x")
    assert (done.returncode, done.stdout) == (0, b"ran '-x'\n")


# -- folders -------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", ["report", "monitor --once", "--optimize train.py", "doctor"])
def test_a_user_without_a_home_reads_one_line(
    words: str, tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    script(tmp_path)
    homeless = {**clean_environment, "XDG_STATE_HOME": ""}
    homeless.pop("HOME", None)
    tmp_path.chmod(0o555)
    done = subprocess.run(
        [*ORDINARY, sys.executable, "-m", "gpurun", *words.split()],
        cwd=tmp_path,
        env=homeless,
        capture_output=True,
        check=False,
    )
    tmp_path.chmod(0o755)
    if done.stderr.startswith(b"unshare:"):
        pytest.skip("no user namespaces here")
    assert done.returncode in (0, 2)
    assert "internal error" not in done.stderr.decode()


def test_a_working_folder_that_is_gone_is_one_line(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    script(tmp_path)
    for words in ("report", "monitor --once", "--optimize ../train.py"):
        gone = tmp_path / "gone"
        gone.mkdir()
        line = f"cd {gone} && rmdir {gone} && exec {sys.executable} -m gpurun {words}"
        done = subprocess.run(["sh", "-c", line], env=clean_environment, capture_output=True)
        assert done.returncode == 2
        assert told(done)[0] == "gpurun: the working folder is gone: somebody removed it"


def test_a_script_runs_in_a_working_folder_that_is_gone_as_under_python(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    name = tmp_path / script(tmp_path, text="raise SystemExit(3)")
    for words in (name, f"--out {tmp_path / 'records'} {name}"):
        gone = tmp_path / "gone"
        gone.mkdir()
        line = f"cd {gone} && rmdir {gone} && exec {sys.executable} -m gpurun {words}"
        done = subprocess.run(["sh", "-c", line], env=clean_environment, capture_output=True)
        assert done.returncode == 3
        assert "this run is not recorded" in told(done)[0]


def test_a_state_folder_that_cannot_be_entered_is_no_error_of_ours(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    script(tmp_path)
    state = tmp_path / "state"
    (state / "gpurun").mkdir(parents=True)
    state.chmod(0)
    done = subprocess.run(
        [sys.executable, "-m", "gpurun", "report"],
        cwd=tmp_path,
        env={**clean_environment, "XDG_STATE_HOME": str(state)},
        preexec_fn=obey_permissions,
        capture_output=True,
    )
    state.chmod(0o755)
    assert done.returncode == 2
    assert "internal error" not in done.stderr.decode()


@pytest.mark.forked
def test_a_pipe_that_nobody_feeds_holds_nothing_up(tmp_path: Path, gpurun: Gpurun) -> None:
    name = script(tmp_path)
    assert gpurun(name, cwd=tmp_path).returncode == 0
    (run,) = (tmp_path / ".gpurun" / "runs").iterdir()
    pipes = run.with_name("29990101-000000-abcdef")
    pipes.mkdir()
    for record in (*(path.name for path in run.iterdir()), "events-1.jsonl.error"):
        if not (pipes / record).exists():
            os.mkfifo(pipes / record)
    os.mkfifo(tmp_path / "set.json")
    for words, code, line in (
        (["report"], 2, "is no regular file"),
        (["diagnose", pipes.name], 2, "is no regular file"),
        (["monitor", "--once"], 0, ""),
        ([name], 0, ""),
        (["--settings", "set.json", name], 2, "set.json cannot be read: it is no regular file"),
    ):
        done = gpurun(*words, cwd=tmp_path, timeout=60)
        assert done.returncode == code, (words, told(done))
        assert line in told(done)[0]


def test_a_folder_that_may_not_be_listed_is_one_line(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    closed = tmp_path / "closed"
    (closed / "inner").mkdir(parents=True)
    closed.chmod(0)
    for command, named in (
        ("diagnose", "closed"),
        ("diagnose", "closed/inner"),
        ("report", "closed"),
        ("report", "closed/inner"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "gpurun", command, named],
            cwd=tmp_path,
            env=clean_environment,
            preexec_fn=obey_permissions,
            capture_output=True,
        )
        assert done.returncode == 2, told(done)
        assert named in told(done)[0]
    closed.chmod(0o755)


def test_a_script_may_remove_its_working_folder(tmp_path: Path, gpurun: Gpurun) -> None:
    inner = tmp_path / "inner"
    name = script(inner, text="import os, shutil; shutil.rmtree(os.getcwd()); raise SystemExit(3)")
    assert gpurun(name, cwd=inner).returncode == 3


def test_records_that_are_removed_while_gpurun_works_are_one_line(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    name = script(tmp_path, text="import time, torch; time.sleep(600)")
    process = start(tmp_path, clean_environment, "--optimize", "--tune-only", name)
    runs = tmp_path / ".gpurun" / "runs"
    wait_for(lambda: next(runs.glob("*/trials/*/events-*"), None) is not None)
    shutil.rmtree(tmp_path / ".gpurun")
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 2
    assert b"is gone: somebody removed it" in stderr


@pytest.mark.parametrize("closed", [".gpurun", ".gpurun/runs"])
def test_runs_that_go_elsewhere_are_reported_from_there(
    closed: str, tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    name = script(tmp_path)
    (tmp_path / ".gpurun" / "runs").mkdir(parents=True)
    (tmp_path / closed).chmod(0o555)
    for words in ((name,), ("report",)):
        done = subprocess.run(
            [sys.executable, "-m", "gpurun", *words],
            cwd=tmp_path,
            env={**clean_environment, "XDG_STATE_HOME": str(tmp_path / "state")},
            capture_output=True,
            preexec_fn=obey_permissions,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
    assert len(list((tmp_path / "state").glob("gpurun/runs/*/report.html"))) == 1


# -- encodings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "variables",
    [
        pytest.param({"PYTHONIOENCODING": "ascii"}, marks=pytest.mark.slow),
        pytest.param({"PYTHONIOENCODING": "iso-8859-1"}, marks=pytest.mark.slow),
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
    ids=["ascii", "latin-1", "locale C"],
)
def test_documents_are_utf_8_whatever_the_terminal_takes(
    variables: dict[str, str], tmp_path: Path, gpurun: Gpurun
) -> None:
    folder = tmp_path / "größe"
    name = script(folder)
    assert gpurun(name, "Δ→é", cwd=folder).returncode == 0
    for flag in ("--markdown", "--html"):
        done = gpurun("report", flag, "-", cwd=folder, env=variables)
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        assert "Δ→é" in done.stdout.decode("utf-8")
    tuned = gpurun("--optimize", "--tune-only", name, "Δ→é", cwd=folder, env=variables)
    assert tuned.returncode == 5
    assert b"internal error" not in tuned.stderr


def test_a_locale_without_the_characters_of_a_configured_path_is_one_line(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    (tmp_path / "gpurun.toml").write_text('[run]\nout = "größe"\n', encoding="utf-8")
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = gpurun(script(tmp_path), env=plain)
    assert done.returncode == 2
    assert told(done)[:2] == [
        r"gpurun: the locale's encoding (ascii) has no '\xf6'",
        "gpurun: set PYTHONUTF8=1",
    ]


# -- signals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("words", [("--optimize", "--tune-only"), ("--scale", "1,2"), ()])
def test_a_signal_before_the_script_starts_is_the_exit_code(
    number: signal.Signals,
    words: tuple[str, ...],
    tmp_path: Path,
    clean_environment: dict[str, str],
) -> None:
    name = script(tmp_path, text="import time; time.sleep(600)")
    process = start(tmp_path, clean_environment, *words, name)
    wait_for(lambda: _catches(process.pid, number))
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 128 + number, stderr.decode()
    assert f"exit={128 + number}" in stderr.decode().splitlines()[-1]


def _catches(pid: int, number: int) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    caught = next(line.split()[1] for line in lines if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (number - 1) & 1)


# -- interpreters --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [(), *(pytest.param(x, marks=pytest.mark.slow) for x in (("-m",), ("--nproc-per-node", "1")))],
)
def test_a_script_imports_its_own_module_called_gpurun(
    words: tuple[str, ...], tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    script(tmp_path, "gpurun.py", "print('own'); ANSWER = 42\n")
    text = "import torch\nprint('first')\nfrom gpurun import ANSWER\nimport gpurun\n"
    script(tmp_path, text=f"{text}print(ANSWER, gpurun.__file__)\n")
    command = script(tmp_path / "bin", "start.py", "from gpurun.__main__ import entry; entry()")
    target = "train" if "-m" in words else "train.py"
    done = subprocess.run(
        [sys.executable, tmp_path / "bin" / command, *words, target],
        cwd=tmp_path,
        env=clean_environment,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().splitlines() == ["first", "own", f"42 {tmp_path}/gpurun.py"]
    records = list(tmp_path.glob(".gpurun/runs/*/events-*"))
    assert any(b'"event":"torch"' in path.read_bytes() for path in records)


USES = (
    "import gpurun; print(gpurun.__version__)",
    "from gpurun import *; print(ANSWER)",
    "import gpurun",  # for what it does
    "import torch; print('torch'); import gpurun as own; print(own.ANSWER, own.__spec__.name)",
    "import gpurun; gpurun.missing",
    "import gpurun; gpurun.fails()",
    "import sys; sys.fails = True; import gpurun",
)
PLACES = ("gpurun.py", "gpurun/__init__.py", "path/gpurun.py")


@pytest.mark.parametrize(
    ("use", "place"),
    [  # in a push each use and each place
        pytest.param(
            *each, marks=[pytest.mark.slow] * (USES[0] != each[0] and PLACES[0] != each[1])
        )
        for each in itertools.product(USES, PLACES)
    ],
)
def test_a_module_called_gpurun_is_imported_as_python_would(
    use: str, place: str, tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    text = "import sys\n__version__, ANSWER = 9, 42\nprint('own')\n"
    text += "def fails(): raise ValueError\nif hasattr(sys, 'fails'): fails()\n"
    script((tmp_path / place).parent, Path(place).name, text)
    start = script(
        tmp_path / "bin",
        "start.py",
        f"import sys; sys.path[0] = {str(REPOSITORY)!r}\n"
        "from gpurun.__main__ import entry; entry()",
    )
    path = tmp_path / "path" if place.startswith("path") else REPOSITORY
    environment = {**clean_environment, "PYTHONPATH": str(path)}
    name = script(tmp_path, text=f"print('first')\n{use}\n")
    plain, done = (
        subprocess.run(
            [sys.executable, *words, name],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            check=False,
        )
        for words in ((), (tmp_path / "bin" / start, "--quiet"))
    )
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout), done.stderr.decode()
    assert done.stderr.startswith(plain.stderr)
    assert b"hook" not in done.stderr


def test_a_package_called_gpurun_with_modules_called_as_ours_is_the_scripts_and_that_is_said(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    script(tmp_path / "gpurun", "__init__.py", "")
    script(tmp_path / "gpurun", "errors.py", "print('own errors')")
    text = "import gpurun.errors; print(gpurun.errors.__file__)"
    start = script(tmp_path / "bin", "start.py", "from gpurun.__main__ import entry; entry()")
    done = subprocess.run(
        [sys.executable, tmp_path / "bin" / start, script(tmp_path, text=text)],
        cwd=tmp_path,
        env=clean_environment,
        capture_output=True,
        check=False,
    )
    assert done.stdout.decode() == f"own errors\n{tmp_path}/gpurun/errors.py\n"
    assert "gpurun.errors of its own" in done.stderr.decode()


def test_pythoninspect_is_the_scripts(tmp_path: Path, gpurun: Gpurun) -> None:
    done = gpurun(script(tmp_path), env={"PYTHONINSPECT": "1"})
    assert (done.returncode, done.stdout) == (0, b"ran\n")
    assert b"Traceback" not in done.stderr
    failed = gpurun(script(tmp_path, text="raise SystemExit(4)"), env={"PYTHONINSPECT": "1"})
    plain = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONINSPECT": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert failed.returncode == plain.returncode


def test_the_scripts_first_file_has_the_number_three(tmp_path: Path, gpurun: Gpurun) -> None:
    text = "import os; print(os.open('/dev/null', os.O_RDONLY))"
    plain = subprocess.run([sys.executable, "-c", text], capture_output=True, check=True)
    assert gpurun(script(tmp_path, text=text)).stdout == plain.stdout


def test_coverage_of_the_script_counts_no_file_of_ours(
    tmp_path: Path, gpurun: Gpurun, clean_environment: dict[str, str]
) -> None:
    pytest.importorskip("coverage")
    clean_environment.pop("COVERAGE_PROCESS_CONFIG", None)  # that of these tests measures ours
    measured = "import coverage, sys\ndata = coverage.CoverageData(sys.argv[1])\ndata.read()\n"
    name = script(tmp_path, text="import torch\ntorch.nn.Linear(1, 1)\n")
    data = str(tmp_path / "data")
    run = ("-m", "coverage", "run", f"--data-file={data}", name)
    assert gpurun(*run).returncode == 0
    files = subprocess.run(
        [sys.executable, "-c", f"{measured}print(*data.measured_files())", data],
        cwd=tmp_path,
        capture_output=True,
        check=True,
    )
    assert files.stdout.decode().split() == [str(tmp_path / name)]


def _older_pythons() -> list[str]:
    names = ("python2.7", "python2", "python3.6", "python3.8")
    places = Path.home().glob(".pyenv/versions/*/bin/python")
    found = [*filter(None, map(shutil.which, names)), *map(str, sorted(places))]
    return [path for path in found if _is_older(path)]


def _is_older(python: str) -> bool:
    asked = [python, "-c", "import sys; print(sys.version_info < (3, 10))"]
    return subprocess.run(asked, capture_output=True, check=False).stdout == b"True\n"


NEW_SYNTAX = (
    ast.AnnAssign, ast.AsyncFor, ast.AsyncFunctionDef, ast.AsyncWith, ast.Await, ast.JoinedStr,
    ast.Match, ast.NamedExpr, ast.Nonlocal, ast.Starred, ast.YieldFrom,
)  # fmt: skip
NEW_NAMES = {name for name in vars(builtins) if name.endswith("Error")} - {
    "AttributeError", "EnvironmentError", "IOError", "ImportError", "KeyError", "NameError",
    "OSError", "RuntimeError", "TypeError", "ValueError",
}  # fmt: skip


def unknown_to_python_2(source: str) -> list[str]:
    """What of this source python 2.7 does not know, or python 3.4."""
    try:
        tree = ast.parse(source, feature_version=(3, 4))
    except SyntaxError as error:
        return [str(error)]
    found = [
        f"line {n.lineno}: {type(n).__name__}" for n in ast.walk(tree) if type(n) in NEW_SYNTAX
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.annotation is not None:
            found.append(f"an annotation of {node.arg}")
        elif isinstance(node, ast.FunctionDef):
            more = (node.returns, *node.args.kwonlyargs, *node.args.posonlyargs)
            found += [f"the arguments of {node.name}"] if any(more) else []
        elif isinstance(node, ast.Raise) and node.cause is not None:
            found.append("raise ... from ...")
        elif isinstance(node, ast.ImportFrom) and node.module == "__future__":
            found += [f"from __future__ import {alias.name}" for alias in node.names]
        elif isinstance(node, ast.ClassDef) and node.keywords:
            found.append(f"the arguments of class {node.name}")
        elif isinstance(node, ast.Name) and node.id in NEW_NAMES:
            found.append(node.id)
    return found + ([] if source.isascii() else ["letters beyond ASCII"])


@pytest.mark.parametrize(
    "source",
    [
        "def f(a: int): pass",
        "def f() -> int: pass",
        "f'{1}'",
        "a: int = 1",
        "(a := 1)",
        "raise ValueError from None",
        "from __future__ import annotations",
        "try: f()\nexcept FileNotFoundError: pass",
        "print('\u00e9')",
    ],
)
def test_syntax_that_an_older_python_does_not_know_is_found(source: str) -> None:
    assert unknown_to_python_2(source)


def test_the_start_up_hook_is_valid_in_the_pythons_that_a_script_may_start() -> None:
    source = (BOOTSTRAP / "sitecustomize.py").read_text(encoding="utf-8")
    assert unknown_to_python_2(source) == []


def test_a_child_of_an_older_python_says_nothing_of_us(tmp_path: Path, gpurun: Gpurun) -> None:
    older = _older_pythons()
    if not older:
        pytest.skip("no older python here")
    (tmp_path / "site").mkdir()
    script(tmp_path / "site", "sitecustomize.py", "print('own sitecustomize')\n")
    text = "import subprocess, sys\nfor python in sys.argv[1:]:\n"
    text += "    subprocess.run([python, '-c', 'import sys; print(sys.path)'], check=True)\n"
    paths = os.pathsep.join((str(tmp_path / "site"), str(Path(__file__).parents[2])))
    done = gpurun(script(tmp_path, text=text), *older, env={"PYTHONPATH": paths})
    assert done.returncode == 0
    assert done.stdout.count(b"own sitecustomize") == len(older) + 2  # launcher and script
    assert b"bootstrap" not in done.stdout
    assert told(done)[0].startswith("verdict=ok")
