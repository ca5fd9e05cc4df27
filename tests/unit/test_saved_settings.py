"""Tuned settings: under which command they are found again, and when they are refused."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from gpurun.arguments import settings_file
from gpurun.arguments.main_flags import parse
from gpurun.commands import saved_settings
from gpurun.errors import GpurunError
from gpurun.measure.fingerprint import command_fingerprint, module_file, modules_below
from gpurun.records.tuning import SavedSettings


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a script in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    return tmp_path


def tuned(words: list[str], workers: int = 4) -> SavedSettings:
    options = parse(words)
    command = (options.target.path, *options.target.args)
    fingerprint = command_fingerprint(options.typed, options.rank_words, options.knob_paths)
    return SavedSettings({"loader_workers": workers}, ("a",), 2.0, fingerprint, command)


def kept(home: Path, words: list[str]) -> Path:
    path = saved_settings.settings_path(home, parse(words))
    settings_file.save(path, tuned(words))
    return path


def refusal(home: Path, words: list[str]) -> GpurunError:
    with pytest.raises(GpurunError) as refused:
        saved_settings.load_tuned(home, parse(words))
    assert "\n" not in refused.value.what + refused.value.todo
    return refused.value


def test_what_was_saved_is_loaded(here: Path) -> None:
    kept(here, ["train.py", "--lr", "1"])
    assert saved_settings.load_tuned(here, parse(["train.py", "--lr", "1"])) == tuned(
        ["train.py", "--lr", "1"]
    )


def test_another_spelling_of_the_script_is_the_same_command(here: Path) -> None:
    kept(here, ["train.py", "--lr", "1"])
    assert saved_settings.load_tuned(here, parse(["./train.py", "--lr", "1"])).speedup == 2.0


def test_other_arguments_or_ranks_are_another_command_and_what_was_tuned_is_named(
    here: Path,
) -> None:
    kept(here, ["train.py", "--lr", "1"])
    refused = refusal(here, ["train.py", "--lr", "2"])
    assert refused.what == "this command was not tuned here yet; it was with: --lr 1"
    assert "gpurun --optimize" in refused.todo
    refusal(here, ["--nproc-per-node=2", "train.py", "--lr", "1"])


def test_a_changed_script_is_refused_by_name(here: Path) -> None:
    kept(here, ["train.py"])
    (here / "train.py").write_text("x = 1\n")
    assert "the script's text has changed" in refusal(here, ["train.py"]).what


@pytest.mark.parametrize(
    ("edited", "what"),
    [
        ("train.py", "the script's text has changed"),
        ("__init__.py", "a module beside the script has changed"),
        ("model.py", "a module beside the script has changed"),
        ("../shared.py", "a module beside the script has changed"),
    ],
)
def test_a_module_that_runs_is_known_by_its_text_without_being_imported(
    here: Path, edited: str, what: str
) -> None:
    package = here / "project"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')\n")
    (package / "train.py").write_text("from . import model\n")
    (package / "model.py").write_text("import shared\n")
    (here / "shared.py").write_text("width = 1\n")
    kept(here, ["-m", "project.train"])
    assert saved_settings.load_tuned(here, parse(["-m", "project.train"]))
    with (package / edited).open("a") as file:
        file.write("x = 2\n")
    assert refusal(here, ["-m", "project.train"]).what == f"tuned for something else: {what}"


def test_a_package_that_runs_is_known_by_its_main_module(here: Path) -> None:
    (here / "project").mkdir()
    (here / "project" / "__main__.py").write_text("x = 1\n")
    kept(here, ["-m", "project"])
    (here / "project" / "__main__.py").write_text("x = 2\n")
    assert "the script's text has changed" in refusal(here, ["-m", "project"]).what


def test_of_an_installed_program_only_its_own_package_counts(tmp_path: Path) -> None:
    place = tmp_path / "site-packages"
    for name in ("tool", "library"):
        (place / name).mkdir(parents=True)
        (place / name / "__init__.py").write_text("")
    (place / "tool" / "__main__.py").write_text("import library\nfrom tool import parts\n")
    (place / "tool" / "parts.py").write_text("")
    found = module_file("tool", [tmp_path, place])
    assert found == (place / "tool" / "__main__.py", place)
    assert [p.name for p in modules_below(place, found[0])] == ["__init__.py", "parts.py"]


@pytest.mark.parametrize(
    "text", ["", '{"settings": {', "[]", '{"settings": {}}', "\x00\x01", '"tuned"']
)
def test_a_damaged_file_counts_as_not_tuned_and_is_named_in_one_line(here: Path, text: str) -> None:
    path = kept(here, ["train.py"])
    path.write_text(text)
    refused = refusal(here, ["train.py"])
    assert refused.what.startswith("this command has no readable tuned settings: ")
    assert str(path) in refused.what
    assert "gpurun --optimize" in refused.todo
    assert "it was with" not in refusal(here, ["train.py", "--lr", "2"]).what
    kept(here, ["train.py"])  # tuning again replaces it
    assert saved_settings.load_tuned(here, parse(["train.py"])).settings == {"loader_workers": 4}


def test_a_damaged_settings_file_named_by_hand_is_told_how_to_write_it(here: Path) -> None:
    (here / "kept.json").write_text("{")
    with pytest.raises(GpurunError) as refused:
        settings_file.load(here / "kept.json")
    assert refused.value.what == f"{here / 'kept.json'} is not valid JSON: line 1 column 2"
    assert "--save-settings" in refused.value.todo


def test_settings_written_by_hand_need_nothing_else(here: Path) -> None:
    (here / "kept.json").write_text('{"settings": {"loader_workers": 2}}')
    assert settings_file.load(here / "kept.json").settings == {"loader_workers": 2}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("nonsense", "is not valid JSON: line 1 column 1"),
        ("[]", 'is no settings file: it must be an object such as {"settings": {}}'),
        (
            '{"setings": {}, "speedup": "2"}',
            "is no settings file: 'settings' is missing; 'speedup' takes a number;"
            " 'setings' is unknown",
        ),
        (
            '{"settings": 3, "command": "train.py"}',
            "is no settings file: 'command' takes a list of texts;"
            " 'settings' takes a table of keys and values",
        ),
        (
            '{"settings": {}, "tuned_arguments": ["--lr"]}',
            "is no settings file: 'tuned_arguments' takes a list of tables of keys and values",
        ),
        (
            '{"settings": {"batch_size": "a\\u0000b"}}',
            "cannot be read: a null character is no part of a setting",
        ),
        (
            '{"schema": "gpurun/tuning@2"}',
            "is no settings file: its schema is 'gpurun/tuning@2', not 'gpurun/settings@1'",
        ),
    ],
)
def test_everything_wrong_with_a_settings_file_is_said_in_words(
    here: Path, text: str, what: str
) -> None:
    (here / "s.json").write_text(text)
    with pytest.raises(GpurunError) as refused:
        settings_file.load(here / "s.json")
    assert sorted(refused.value.what.split("; ")) == sorted(f"{here / 's.json'} {what}".split("; "))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[settings\n", "cannot be read: line 1: not valid TOML: "),
        ("[settings]\nday = 2026-11-22\n", "cannot be read: a date, nan and inf are no settings"),
        ("[settings]\nrate = nan\n", "cannot be read: a date, nan and inf are no settings"),
        ("speedup = 2.0\n", "is no settings file: 'settings' is missing"),
        (f"[settings]\n{'a.' * 200}a = 1\n", "cannot be read: it is nested too deeply"),
        (f"[settings]\n{'a.' * 5000}a = 1\n", "cannot be read: it is nested too deeply"),
        (
            '[settings]\nbatch = "a\\u0000b"\n',
            "cannot be read: a null character is no part of a setting",
        ),
    ],
)
def test_settings_may_be_toml_and_what_is_wrong_with_it_is_said(
    here: Path, text: str, what: str
) -> None:
    path = here / "s.toml"
    path.write_text("[settings]\nloader_workers = 2\nallocator = { size = 1 }\n")
    assert settings_file.load(path).settings == {"loader_workers": 2, "allocator": {"size": 1}}
    path.write_text(text)
    with pytest.raises(GpurunError) as refused:
        settings_file.load(path)
    assert refused.value.what.startswith(f"{path} {what}")
    assert "[settings]" in refused.value.todo


def test_a_file_that_was_saved_can_be_read_whatever_its_name_ends_in(here: Path) -> None:
    saved = tuned(["train.py"], 4)
    settings_file.save(here / "s.toml", saved)
    assert settings_file.load(here / "s.toml") == saved
    marked = b"\xef\xbb\xbf" + (here / "s.toml").read_bytes()
    (here / "s.toml").write_bytes(marked)
    assert settings_file.load(here / "s.toml") == saved, "a byte order mark is none of its text"


def test_a_command_never_tuned_is_not_told_to_tune_again(here: Path) -> None:
    assert "again" not in refusal(here, ["train.py"]).todo


def test_two_tunings_at_once_leave_one_whole_file(here: Path) -> None:
    path = saved_settings.settings_path(here, parse(["train.py"]))
    both = [tuned(["train.py"], workers) for workers in (2, 8)]
    read = []

    def write(saved: SavedSettings) -> None:
        for _ in range(50):
            settings_file.save(path, saved)
            read.append(settings_file.load(path))

    writers = [threading.Thread(target=write, args=(saved,)) for saved in both]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(read) == 100
    assert all(saved in both for saved in read)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "words",
    [
        ["train.py", "--name", "a b", "--", "$HOME"],
        ["--nproc-per-node", "2", "--rdzv_id=7", "train.py"],
        ["-m", "package.train", "--lr", "1"],
        ["--no-python", "sh", "-c", "python train.py"],
        ["--out", "my records", "train.py"],
        ["--allow", "pipeline,training", "train.py"],
        ["--", "--odd.py", "x"],
    ],
)
def test_the_words_to_type_next_ask_for_the_same_command(words: list[str]) -> None:
    before = parse(["--optimize", *words], {})
    program, *rest = saved_settings.tuned_command(before)
    after = parse(list(rest), {})
    assert program == "gpurun"
    assert after.tuned
    for name in ("target", "torchrun", "elastic", "out", "allow"):
        assert getattr(after, name) == getattr(before, name)


def test_what_the_configuration_says_need_not_be_typed(here: Path) -> None:
    from gpurun.arguments.main_flags import with_configuration

    (here / "gpurun.toml").write_text("[optimize]\nallow = ['training']\n[run]\nout = 'records'\n")
    configured = with_configuration(parse(["--optimize", "train.py"], {}), here)
    assert configured.out is not None
    assert saved_settings.tuned_command(configured) == ("gpurun", "--tuned", "train.py")
    typed = with_configuration(parse(["--optimize", "--allow", "numerics", "train.py"], {}), here)
    assert saved_settings.tuned_command(typed) == (
        "gpurun",
        "--tuned",
        "--allow",
        "numerics",
        "train.py",
    )


def test_settings_files_are_json_documents_with_their_schema(here: Path) -> None:
    document = json.loads(kept(here, ["train.py"]).read_text())
    assert document["schema"] == "gpurun/settings@1"
    assert document["settings"] == {"loader_workers": 4}


def test_a_tuning_of_arguments_is_found_by_the_words_that_asked_for_it(here: Path) -> None:
    words = ["train.py", "--lr", "@tune[pipeline]:1,2"]
    asked = parse(["--optimize", *words])
    command = (asked.typed.path, *asked.typed.args)
    saved = SavedSettings(
        {"--lr": "2"},
        (),
        2.0,
        command_fingerprint(asked.typed, asked.rank_words, ()),
        command,
        asked.tuned_arguments,
    )
    settings_file.save(saved_settings.settings_path(here, asked), saved)
    _, *again = saved_settings.tuned_command(asked)
    assert again == ["--tuned", *words]
    assert saved_settings.load_tuned(here, parse(list(again))) == saved
    other = refusal(here, ["train.py", "--lr", "1"])
    assert other.what.endswith("it was with: --lr '@tune[pipeline]:1,2'")


def in_vain(words: list[str], verdict: str) -> SavedSettings:
    return replace(tuned(words), settings={}, speedup=None, verdict=verdict)


def test_a_command_that_was_tuned_in_vain_is_not_said_to_be_untuned(here: Path) -> None:
    path = saved_settings.settings_path(here, parse(["train.py"]))
    saved_settings.save_in_vain(path, in_vain(["train.py"], "inconclusive"))
    refused = refusal(here, ["train.py"])
    assert refused.what == "tuned, nothing proven: the budget ended first"
    assert refused.todo == "run gpurun --optimize with a larger --budget"
    saved_settings.save_in_vain(path, in_vain(["train.py"], "no_gain"))
    refused = refusal(here, ["train.py"])
    assert refused.what == "tuned, nothing proven: no settings were faster"


def test_proven_settings_outlive_a_later_tuning_in_vain_until_something_changes(
    here: Path,
) -> None:
    path = kept(here, ["train.py"])
    saved_settings.save_in_vain(path, in_vain(["train.py"], "inconclusive"))
    assert saved_settings.load_tuned(here, parse(["train.py"])).settings == {"loader_workers": 4}
    (here / "train.py").write_text("print()")
    saved_settings.save_in_vain(path, in_vain(["train.py"], "inconclusive"))
    assert "nothing proven" in refusal(here, ["train.py"]).what
