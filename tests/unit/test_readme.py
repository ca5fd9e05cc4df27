"""The README claims what is there: its commands, its knobs, its flags and its exit codes."""

from __future__ import annotations

import re

from gpurun.arguments.flag_table import markdown_rows
from gpurun.arguments.main_flags import MAIN
from gpurun.cli import COMMANDS
from gpurun.errors import ExitCode
from gpurun.knobs import all_knobs
from tests.conftest import REPOSITORY

README = (REPOSITORY / "README.md").read_text()


def section(title: str) -> str:
    return README.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_the_first_two_blocks_install_what_was_tested() -> None:
    blocks = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    assert all("pip install -c constraints.txt" in block for block in blocks[:2])
    assert "gpurun --optimize" in blocks[0]
    assert blocks[1].strip().endswith("&& pytest")


def test_the_example_of_the_first_block_is_there() -> None:
    (script,) = re.findall(r"gpurun --optimize .*?(\S+\.py)", README.split("## Commands")[0])
    assert (REPOSITORY / script).is_file()


def test_every_knob_stands_there_with_its_effect() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", section("Knobs"), re.MULTILINE))
    assert rows == {knob.name: knob.effect.value for knob in all_knobs()}


def test_every_command_and_flag_of_ours_stands_there() -> None:
    text = section("Commands")
    assert [command for command in COMMANDS if f"gpurun {command}" not in text] == []
    assert [one.name for one in MAIN.values() if one.help and f"--{one.name}" not in text] == []
    assert markdown_rows(MAIN.values()) in text, "run scripts/write_flag_table.py"


def test_every_exit_code_in_use_stands_there() -> None:
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", section("Exit codes"), re.MULTILINE)}
    assert codes == set(ExitCode)


def test_what_is_not_there_yet_is_not_a_command() -> None:
    missing = set(re.findall(r"`(\w+)`", section("What it does not do yet")))
    assert missing & set(COMMANDS) == set()
