"""The command line: what belongs to us, to torchrun and to the script; and how errors look."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpurun import main
from gpurun.arguments.main_flags import MAIN, parse, with_configuration
from gpurun.arguments.options import Objective, TargetKind
from gpurun.arguments.subcommand_flags import parse_blame, parse_eject, parse_profile
from gpurun.arguments.torchrun_flags import asks_for_ranks, nodes_asked_for
from gpurun.errors import GpurunError
from gpurun.isolation import available_modes
from gpurun.isolation.available_modes import Availability
from gpurun.launch.launch_command import interpreter_flags
from tests.conftest import REPOSITORY


def test_everything_after_the_script_is_the_scripts() -> None:
    options = parse(["--quiet", "train.py", "--quiet", "--", "-m", "--nnodes=2", "x"], {})
    assert options.target.path == "train.py"
    assert options.target.args == ("--quiet", "--", "-m", "--nnodes=2", "x")
    assert not options.elastic


def test_two_dashes_end_the_flags() -> None:
    options = parse(["--quiet", "--", "--odd-name.py", "a"], {})
    assert (options.target.path, options.target.args) == ("--odd-name.py", ("a",))


@pytest.mark.parametrize(
    "words",
    [
        ["--nproc-per-node=2"],
        ["--nproc_per_node", "2"],
        ["--nproc", "2"],
        ["-m", "--standalone"],
        ["-r3"],
        ["-t", "1:3"],
        ["--virtual-local-rank"],
    ],
)
def test_any_torchrun_flag_asks_for_ranks(words: list[str]) -> None:
    options = parse([*words, "train.py"], {})
    assert options.elastic
    assert options.target.path == "train.py"
    assert all(word.startswith("--") for word in options.torchrun)


@pytest.mark.parametrize(
    ("environment", "asks"),
    [
        ({"PET_NNODES": "2"}, True),
        ({"PET_STANDALONE": "1"}, True),
        ({"PET_STANDALONE": "0"}, False),
        ({"PET_NNODES": ""}, False),
        ({"PET_MODULE": "1"}, False),
        ({"RANK": "0"}, False),
    ],
)
def test_pet_variables_count_as_flags(environment: dict[str, str], asks: bool) -> None:
    assert asks_for_ranks(environment) is asks


@pytest.mark.parametrize(
    ("words", "environment", "asked"),
    [
        ([], {}, None),
        (["--nnodes=1"], {}, None),
        (["--nnodes=1:1"], {"PET_NNODES": "2"}, None),
        ([], {"PET_NNODES": "1"}, None),
        ([], {"PET_NNODES": ""}, None),
        ([], {"PET_NNODES": "2"}, "PET_NNODES=2"),
        (["--nnodes", "1:4"], {"PET_NNODES": "1"}, "--nnodes=1:4"),
    ],
)
def test_several_nodes_are_noticed_and_the_flag_wins(
    words: list[str], environment: dict[str, str], asked: str | None
) -> None:
    assert nodes_asked_for(parse([*words, "train.py"], environment), environment) == asked


def test_every_flag_of_torchrun_is_known() -> None:
    from torch.distributed.run import get_args_parser

    for action in get_args_parser()._actions:
        for flag in (f for f in action.option_strings if f not in ("-h", "--help")):
            value = [] if action.nargs == 0 else ["1"]
            assert parse([flag, *value, "train.py"], {}).target.path == "train.py"


def test_module_and_command_are_told_apart() -> None:
    assert parse(["-m", "package.tool"], {}).target.kind is TargetKind.MODULE
    assert parse(["--no-python", "sh"], {}).target.kind is TargetKind.COMMAND
    assert parse(["tool"], {"PET_NO_PYTHON": "1"}).target.kind is TargetKind.COMMAND
    with pytest.raises(GpurunError):
        parse(["-m", "--no-python", "sh"], {})


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--optimise", "train.py"], "--optimize"),
        (["--nproc-per-nod3", "2", "train.py"], "--nproc-per-node"),
        (["--t", "train.py"], "--tune-only"),
        (["--budget", "soon", "train.py"], "5m"),
        (["--allow", "everything", "train.py"], "numerics"),
        (["--max-trials", "none", "train.py"], "number"),
        (["--quiet=yes", "train.py"], "--quiet"),
        (["--json"], "--json"),
        (["--tuned", "--settings", "x", "train.py"], "drop"),
        (["--quiet"], "train.py"),
    ],
)
def test_a_wrong_flag_is_two_lines_and_the_verdict(
    words: list[str], hint: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    out, err = capfd.readouterr()
    what, todo, verdict = err.splitlines()
    assert out == ""
    assert what.startswith("gpurun: ")
    assert hint in todo
    assert verdict == "verdict=error exit=2"


def test_flags_win_over_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "gpurun.toml").write_text(
        '[optimize]\nbudget = "1m"\nallow = ["pipeline"]\nmax_trials = 7\n[run]\nquiet = true\n'
    )
    (tmp_path / "deep").mkdir()
    typed = parse(["--optimize", "--budget", "90s", "train.py"], {})
    options = with_configuration(typed, tmp_path / "deep")
    assert (options.budget_seconds, options.max_trials) == (90, 7)
    assert (options.allow, options.quiet) == (("pipeline",), True)


def test_optimize_knows_its_budget_and_effects_without_a_configuration(tmp_path: Path) -> None:
    options = with_configuration(parse(["--tune-only", "train.py"], {}), tmp_path)
    assert options.optimize
    assert options.budget_seconds is not None
    assert options.allow == ("pipeline", "numerics")


def test_first_word_decides_between_command_and_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPURUN_HOME", str(tmp_path / "home"))
    (tmp_path / "doctor").write_text("print('a script of that name')")
    assert main(["./doctor"]) == 0
    assert capfd.readouterr().out == "a script of that name\n"
    assert main(["doctor", "train.py"]) == 2


def test_main_can_be_called_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text("import sys; sys.exit(int(sys.argv[1]))")
    assert [main(["--quiet", "script.py", str(code)]) for code in (3, 0, 4)] == [3, 0, 4]


def test_an_error_of_ours_is_one_line_with_its_details_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setitem(sys.modules, "gpurun.commands.run", None)  # as in a broken installation
    assert main(["script.py"]) == 70
    line, verdict = capfd.readouterr().err.splitlines()
    assert line.startswith("gpurun: internal error: ")
    assert verdict == "verdict=internal_error exit=70"
    (details,) = tmp_path.glob("gpurun-error-*.txt")
    assert "Traceback" in details.read_text()
    assert str(details) in line


def test_a_full_disk_is_no_error_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def full(argv: list[str]) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", "records/result.json")

    monkeypatch.setattr("gpurun.cli._dispatch", full)
    assert main(["script.py"]) == 2
    assert capfd.readouterr().err.splitlines() == [
        "gpurun: records cannot be written to records/result.json: No space left on device",
        "gpurun: make room there, or name another folder with --out",
        "verdict=error exit=2",
    ]


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "ulimit -n"),
        (OSError(errno.ENFILE, "Too many open files in system"), "fs.file-max"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "ulimit -u"),
        (RuntimeError("can't start new thread"), "ulimit -u"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "ulimit -v"),
        (MemoryError(), "ulimit -v"),
        (OSError(errno.EFBIG, "File too large"), "ulimit -f"),
        (ImportError("_x.so: failed to map segment from shared object\n"), "ulimit -v"),
        (ImportError("_x.so: cannot open shared object file: Too many open files"), "ulimit -n"),
    ],
)
def test_a_limit_of_the_system_is_named_and_no_error_of_ours(
    error: Exception,
    named: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def fail(argv: list[str]) -> int:
        raise error

    monkeypatch.setattr("gpurun.cli._dispatch", fail)
    assert main(["script.py"]) == 2
    what, todo, verdict = capfd.readouterr().err.splitlines()
    assert what.startswith("gpurun: ")
    assert named in todo
    assert verdict == "verdict=error exit=2"


@pytest.mark.parametrize(
    ("number", "named"), [(errno.EAGAIN, "ulimit -u"), (errno.EPERM, "user namespaces")]
)
def test_a_sandbox_that_meets_a_limit_names_it(
    number: int, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = f"the isolated trial could not be set up: {os.strerror(number)}"
    monkeypatch.setattr(available_modes, "choose", lambda *_, **__: Availability(None, reason))
    with pytest.raises(GpurunError) as refused:
        available_modes.require(tmp_path, in_place=False)
    assert named in refused.value.todo


@pytest.mark.parametrize("most", [6, 9, 16])
def test_no_command_calls_too_few_open_files_an_error_of_ours(most: int, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    for words in (["doctor"], ["bench", "train.py"], ["--optimize", "--dry-run", "train.py"]):
        done = subprocess.run(
            [sys.executable, "-m", "gpurun", *words],
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (most, most)),
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 2, done.stderr
        assert "ulimit -n" in done.stderr
        assert "Traceback" not in done.stderr


def test_help_names_every_flag_of_ours(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capfd.readouterr().out
    assert [one.name for one in MAIN.values() if one.help and f"--{one.name}" not in text] == []
    assert main([]) == 2


def test_the_default_number_of_trials_is_the_same_wherever_it_is_said(
    capfd: pytest.CaptureFixture[str],
) -> None:
    from gpurun.tuner.tuning_run import MOST_TRIALS

    repository = Path(__file__).resolve().parents[2]
    main(["--help"])
    said = "trials before the proof, including two of the script as it is"
    for text in (capfd.readouterr().out, (repository / "README.md").read_text()):
        assert f"{said}; {MOST_TRIALS} by default" in " ".join(text.split())
    (line,) = [s for s in (repository / "gpurun.toml").read_text().splitlines() if said in s]
    assert line.startswith(f"# max_trials = {MOST_TRIALS} ")


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        ("python -m gpurun x.py -u", ()),
        ("python /bin/gpurun -u", ()),
        ("python -u -W error -Xdev -m gpurun", ("-u", "-W", "error", "-Xdev")),
        ("python -uBWerror -m gpurun", ("-uBWerror",)),
        ("python -um gpurun", ("-u",)),
        ("python -X dev -c code -m", ("-X", "dev")),
        (
            "python --check-hash-based-pycs always x.py",
            ("--check-hash-based-pycs", "always"),
        ),
    ],
)
def test_interpreter_flags_are_told_from_the_rest(words: str, flags: tuple[str, ...]) -> None:
    assert interpreter_flags(words.split()) == flags


def test_the_cheapest_settings_are_the_fastest() -> None:
    cost = parse(["--optimize", "--objective", "cost", "train.py"], {})
    assert cost.objective is Objective.THROUGHPUT
    with pytest.raises(GpurunError, match="'speed' is no objective"):
        parse(["--optimize", "--objective", "speed", "train.py"], {})


def test_a_command_has_flags_of_its_own_beside_those_of_the_run() -> None:
    words = ["--trials-in-place", "--quiet", "--allow", "training", "train.py"]
    eject = parse_eject(["--budget", "2m", "--no-check", *words])
    assert (eject.budget_seconds, eject.check, eject.trials_in_place) == (120, False, True)
    blame = parse_blame(["--steps", "7", "--check", "true", *words])
    assert (blame.steps, blame.check, blame.trials_in_place) == (7, "true", True)
    for run in (eject.run, blame.run):
        assert (run.tuned, run.quiet, run.allow) == (True, True, ("training",))
    assert parse_blame(["--settings", "x.json", "train.py"]).steps == 100
    profile = parse_profile(["--steps", "9", "--stop", "--ddp", "train.py"])
    assert (profile.steps, profile.stop, profile.sources) == (9, True, None)
    assert profile.run.ddp


@pytest.mark.parametrize(
    ("parse_command", "flag"),
    [
        (parse_blame, "--scale=1,2"),
        (parse_blame, "--budget=5m"),
        (parse_blame, "--live"),
        (parse_eject, "--steps=5"),
        (parse_eject, "--on-oom=stop"),
        (parse_profile, "--allow=training"),
        (parse_profile, "--trials-in-place"),
        (parse_profile, "--profile-every=5"),
    ],
)
def test_a_command_refuses_flags_that_are_against_it(
    parse_command: Callable[[list[str]], object], flag: str
) -> None:
    name = flag.partition("=")[0]
    with pytest.raises(GpurunError, match=f"{name} is not for "):
        parse_command([flag, "train.py"])


BOOTSTRAP = str(REPOSITORY / "gpurun" / "runtime" / "bootstrap")
INTERRUPT = """
import os, signal, sys
class Interrupt:
    def find_spec(self, name, *_):
        if name.startswith("gpurun.") and not name.endswith("__main__"):
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
"""
"""Ctrl-C at the first module of gpurun's that is imported from now on."""


@pytest.mark.parametrize(
    "start",
    [
        "from gpurun.__main__ import entry; entry()",
        f"sys.path.insert(0, {BOOTSTRAP!r}); import sitecustomize",
    ],
    ids=["the launcher", "the script's process"],
)
def test_ctrl_c_while_a_process_imports_gpurun_shows_no_traceback(start: str) -> None:
    done = subprocess.run(
        [sys.executable, "-S", "-c", INTERRUPT + start],
        env={**os.environ, "GPURUN_SPEC": "/nowhere", "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        timeout=60,
    )
    assert done.returncode in (128 + signal.SIGINT, -signal.SIGINT)
    assert done.stderr == b""
