"""Under gpurun a script sees, prints and ends as under python, to the byte."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.conftest import without_verdict
from tests.integration.launched import write

Gpurun = Callable[..., "subprocess.CompletedProcess[bytes]"]
Twins = Callable[..., "subprocess.CompletedProcess[bytes]"]

VIEW = """
import __main__, inspect, os, sys
print(sys.argv, __file__, __name__, sys.path, sorted(vars(__main__)))
print(__spec__ and (__spec__.name, __spec__.origin, __spec__.parent, __spec__.cached))
print(__loader__.__class__, __package__, os.getcwd(), sorted(k for k in os.environ if "RANK" in k))
print(inspect.getsource(__main__)[:40], sys.flags, sys.warnoptions, sys.orig_argv[1:])
"""

SPAWN = """
import multiprocessing, os, sys

def child():
    print(sys.argv, __name__, __file__, sys.path, os.getppid() == int(os.environ["LEAD"]))

if __name__ == "__main__":
    os.environ["LEAD"] = str(os.getpid())
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        process = context.Process(target=child)
        process.start()
        process.join()
        print(method, process.exitcode, flush=True)
    print(multiprocessing.get_start_method(allow_none=True))
"""

TORCH_FAILURES = """
import sys, traceback
import torch
from torch.utils.data import DataLoader, Dataset

class Broken(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        raise ValueError("bad sample")

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(2, 2)
    def forward(self, x):
        return self.inner(x) @ torch.ones(3, 3)

class Picky(torch.optim.SGD):
    def step(self, closure=None):
        raise KeyError("no step")

net = Net()
picky = Picky(net.parameters(), lr=0.1)
for attempt in (
    lambda: next(iter(DataLoader(Broken()))),
    lambda: next(iter(DataLoader(Broken(), num_workers=1))),
    lambda: net(torch.ones(1, 2)),
    lambda: picky.step(),
    lambda: DataLoader([1], batch_size=0),
    lambda: DataLoader([1], no_such_argument=0),
    lambda: torch.ones(2, requires_grad=True).backward(),
):
    try:
        attempt()
    except Exception:
        traceback.print_exc()
net(torch.ones(1, 2))
"""


@pytest.fixture
def twins(tmp_path: Path, clean_environment: dict[str, str]) -> Twins:
    """Run a command line under python and under gpurun, demand the same, and return it."""

    def run(
        *words: str,
        python_flags: Sequence[str] = (),
        stdin: bytes = b"",
        env: dict[str, str] | None = None,
        observed: bool = True,
    ) -> subprocess.CompletedProcess[bytes]:
        def start(*launcher: str) -> subprocess.CompletedProcess[bytes]:
            return subprocess.run(
                [sys.executable, *python_flags, *launcher, *words],
                cwd=tmp_path,
                env={**clean_environment, **(env or {})},
                input=stdin,
                capture_output=True,
                timeout=300,
                check=False,
            )

        bare = start()
        ours = start("-m", "gpurun", "--quiet")
        assert ours.stdout == bare.stdout
        assert without_verdict(ours.stderr) == bare.stderr
        assert ours.returncode == (
            128 - bare.returncode if bare.returncode < 0 else bare.returncode
        )
        if observed:
            assert list(tmp_path.glob(".gpurun/runs/*/events-*.jsonl"))
        return ours

    return run


def test_script_sees_itself_as_under_python(tmp_path: Path, twins: Twins) -> None:
    result = twins(write(tmp_path, VIEW), "--quiet", "--", "-m", "--json", "x y", "")
    assert b"['script.py', '--quiet', '--', '-m', '--json', 'x y', '']" in result.stdout


def test_script_in_another_folder_keeps_its_path(tmp_path: Path, twins: Twins) -> None:
    (tmp_path / "sub").mkdir()
    result = twins(write(tmp_path, VIEW, "sub/deep.py"))
    assert (result.returncode, b"sub/deep.py" in result.stdout) == (0, True)


def test_module_runs_as_under_python_m(tmp_path: Path, twins: Twins) -> None:
    (tmp_path / "package").mkdir()
    write(tmp_path, "", "package/__init__.py")
    write(tmp_path, VIEW + "\n1 / 0\n", "package/tool.py")
    assert b"package.tool" in twins("-m", "package.tool", "-m", "a").stdout


def test_program_on_standard_input_is_read(tmp_path: Path, twins: Twins) -> None:
    program = b"import sys; print(sys.argv, sys.path)"
    assert b"['-', 'a']" in twins("-", "a", stdin=program).stdout


def test_standard_input_and_raw_output_pass_through(tmp_path: Path, twins: Twins) -> None:
    source = "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read()[::-1])"
    data = bytes(range(256)) * 300
    assert twins(write(tmp_path, source), stdin=data).stdout == data[::-1]


def test_interpreter_flags_reach_the_script(tmp_path: Path, twins: Twins) -> None:
    flags = ("-u", "-W", "error::UserWarning", "-Xutf8", "-bO")
    result = twins(write(tmp_path, VIEW), python_flags=flags)
    for flag in (b"optimize=1", b"bytes_warning=1", b"utf8_mode=1", b"'error::UserWarning'"):
        assert flag in result.stdout


@pytest.mark.parametrize("flag", ["-I", "-E", "-S"])
def test_flags_that_switch_the_startup_hook_off_are_refused(
    tmp_path: Path, clean_environment: dict[str, str], flag: str
) -> None:
    script = write(tmp_path, "print('started')")
    call = f"import sys; sys.path[:0] = {[*sys.path]!r}; import gpurun; "
    call += "sys.exit(gpurun.main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, flag, "-c", call, script],
        cwd=tmp_path,
        env=clean_environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "with -I, -E or -S" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob(".gpurun/runs/*"))


def test_children_of_every_start_method_see_the_same(tmp_path: Path, twins: Twins) -> None:
    result = twins(write(tmp_path, SPAWN))
    assert result.stdout.count(b" 0\n") == 3


HOOK = "import sys; sys.excepthook = lambda *e: print('own hook', e[0]); 1 / 0"
THREAD = "import threading\nt = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()"


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("def f():\n    1 / 0\nf()\n", b"in f"),
        (HOOK, b"own hook"),
        *(
            pytest.param(*more, marks=pytest.mark.slow)
            for more in (
                ("def broken(:\n", b"SyntaxError"),
                ("raise KeyError('a') from ValueError('b')", b"direct cause"),
                (THREAD, b"Exception in thread"),
                ("import warnings; warnings.warn('look out')", b"UserWarning: look out"),
            )
        ),
    ],
)
def test_failure_is_shown_as_python_shows_it(
    tmp_path: Path, twins: Twins, source: str, shown: bytes
) -> None:
    result = twins(write(tmp_path, source))
    assert shown in result.stdout + result.stderr


def test_tracebacks_through_torch_hold_no_frame_of_ours(tmp_path: Path, twins: Twins) -> None:
    result = twins(write(tmp_path, TORCH_FAILURES))
    assert result.stderr.count(b"Traceback") >= 8


def test_missing_script_is_reported_by_python_itself(tmp_path: Path, twins: Twins) -> None:
    result = twins("nowhere.py", observed=False)
    assert result.returncode == 2
    assert b"can't open file" in result.stderr


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("raise SystemExit(7)", 7),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", 143),
        ("raise KeyboardInterrupt", 130),
        *(
            pytest.param(*more, marks=pytest.mark.slow)
            for more in (
                ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137),
                ("raise SystemExit('message')", 1),
                ("import os; os._exit(255)", 255),
            )
        ),
    ],
)
def test_exit_code_is_the_scripts_own(tmp_path: Path, twins: Twins, ending: str, code: int) -> None:
    assert twins(write(tmp_path, ending)).returncode == code


def test_users_own_sitecustomize_runs(
    tmp_path: Path, twins: Twins, clean_environment: dict[str, str]
) -> None:
    (tmp_path / "site").mkdir()
    write(tmp_path, "import builtins; builtins.HELLO = 'from site'", "site/sitecustomize.py")
    path = f"{tmp_path / 'site'}:{clean_environment['PYTHONPATH']}"
    result = twins(write(tmp_path, "import sys; print(HELLO, sys.path)"), env={"PYTHONPATH": path})
    assert b"from site" in result.stdout


@pytest.mark.parametrize("body", ["1 / 0", "import no_such_module"])
def test_users_own_broken_sitecustomize_fails_as_without_us(
    tmp_path: Path, gpurun: Gpurun, clean_environment: dict[str, str], body: str
) -> None:
    write(
        tmp_path,
        "import sys\nif 'script.py' in sys.orig_argv[1:2]:\n    " + body,
        "sitecustomize.py",
    )
    env = {"PYTHONPATH": f"{tmp_path}:{clean_environment['PYTHONPATH']}"}
    script = write(tmp_path, "print('ran')")
    bare = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        env={**clean_environment, **env},
        capture_output=True,
    )
    ours = gpurun("--quiet", script, env=env)
    assert bare.stderr or bare.returncode
    assert (ours.stdout, without_verdict(ours.stderr), ours.returncode) == (
        bare.stdout,
        bare.stderr,
        bare.returncode,
    )


def test_current_folder_is_not_importable_from_a_script_elsewhere(
    tmp_path: Path, twins: Twins
) -> None:
    (tmp_path / "sub").mkdir()
    write(tmp_path, "", "neighbour.py")
    result = twins(write(tmp_path, "import neighbour", "sub/script.py"))
    assert b"No module named 'neighbour'" in result.stderr


def test_no_python_runs_any_command(tmp_path: Path, gpurun: Gpurun) -> None:
    result = gpurun("--no-python", "sh", "-c", "echo out; echo err >&2; exit 9")
    assert (result.stdout, result.returncode) == (b"out\n", 9)
    assert gpurun("--quiet", "--no-python", "no-such-command").returncode == 127


@pytest.mark.parametrize(
    "closed",
    ["<&- >&- 2>&-", *(pytest.param(x, marks=pytest.mark.slow) for x in ("2>&-", ">&- 2>&-"))],
)
def test_a_script_runs_with_its_streams_closed(
    tmp_path: Path, clean_environment: dict[str, str], closed: str
) -> None:
    script = write(
        tmp_path,
        "import pathlib, sys\n"
        "pathlib.Path('seen').write_text(repr([s is None for s in (sys.stdout, sys.stderr)]))\n"
        "sys.exit(3)\n",
    )
    seen = []
    for launcher in ([], ["-m", "gpurun"]):
        line = f'exec "$@" {closed}'
        done = subprocess.run(
            ["sh", "-c", line, "sh", sys.executable, *launcher, script],
            cwd=tmp_path,
            env=clean_environment,
            check=False,
            timeout=60,
        )
        seen.append((done.returncode, (tmp_path / "seen").read_text()))
        (tmp_path / "seen").unlink()
    assert seen[0] == seen[1]
    assert seen[0][0] == 3
