"""`@tune:` words: which words of the script are ours, and what they ask for."""

from __future__ import annotations

import pytest

from gpurun.arguments.main_flags import parse
from gpurun.arguments.options import Options
from gpurun.errors import GpurunError

PLAIN = ("out@tune:8000", "@tune", "@tune.txt", "@tuned:1,2", "--to=me@tune:1,2", "x@tune[1]:2")


def optimized(*words: str) -> Options:
    return parse(["--optimize", "train.py", *words], {})


@pytest.mark.parametrize(
    ("words", "name", "as_it_is"),
    [
        (("--lr", "@tune:0.1,0.2"), "--lr", ("--lr", "0.1")),
        (("--lr=@tune:0.1,0.2",), "--lr", ("--lr=0.1",)),
        (("-b", "@tune:0.1,0.2"), "-b", ("-b", "0.1")),
        (("optimizer.lr=@tune:0.1,0.2",), "optimizer.lr=", ("optimizer.lr=0.1",)),
        (("@tune:0.1,0.2",), "argument 1", ("0.1",)),
        (("data", "@tune:0.1,0.2"), "argument 2", ("data", "0.1")),
        (("--x=3", "@tune:0.1,0.2"), "argument 2", ("--x=3", "0.1")),
        (("--", "@tune:0.1,0.2"), "argument 2", ("--", "0.1")),
        (("-1", "@tune:0.1,0.2"), "argument 2", ("-1", "0.1")),
    ],
)
def test_every_way_to_write_an_argument_is_tuned_and_its_first_value_is_the_script_as_it_is(
    words: tuple[str, ...], name: str, as_it_is: tuple[str, ...]
) -> None:
    options = optimized(*words)
    (argument,) = options.tuned_arguments
    assert (argument.name, argument.values, argument.effect) == (name, ("0.1", "0.2"), "training")
    assert options.target.args == as_it_is
    assert options.typed.args == words


def test_the_user_says_what_an_argument_changes() -> None:
    options = optimized("--bucket-mb", "@tune[pipeline]:25,50", "--lr=@tune[numerics]:1,2")
    assert [a.effect for a in options.tuned_arguments] == ["pipeline", "numerics"]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (r"a\,b,c", ("a,b", "c")),
        (r"a,b\,c\,d", ("a", "b,c,d")),
        (r"\d+,C:\x", (r"\d+", r"C:\x")),
        ("[1],{2}", ("[1]", "{2}")),
        ("a b, c", ("a b", " c")),
    ],
)
def test_a_backslash_keeps_a_comma_in_its_value(text: str, values: tuple[str, ...]) -> None:
    assert optimized("--x", f"@tune:{text}").tuned_arguments[0].values == values


@pytest.mark.parametrize("flags", [[], ["--optimize"]])
@pytest.mark.parametrize("word", PLAIN)
def test_what_only_looks_like_it_is_the_scripts_own(flags: list[str], word: str) -> None:
    options = parse([*flags, "train.py", word], {})
    assert options.target.args == (word,)
    assert options.tuned_arguments == ()


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--lr", "@tune:0.1"), "--lr: @tune:0.1 has one value: there is no choice"),
        (("--lr", "@tune:"), "--lr: @tune: has an empty value"),
        (("--lr", "@tune:1,,2"), "--lr: @tune:1,,2 has an empty value"),
        (("--lr", "@tune:1,2,1"), "--lr: @tune:1,2,1 has a value twice"),
        (("--lr", "@tune[speed]:1,2"), "--lr: @tune[speed] names no effect"),
        (("--lr", "@tune[pipeline]1,2"), "--lr: @tune[pipeline]1,2 has no colon"),
        (("--lr", "@tune[pipeline:1,2"), "--lr: @tune[pipeline:1,2 has no colon"),
        (("--lr", "@tune:1,2", "--lr=@tune:3,4"), "--lr is tuned twice"),
    ],
)
def test_what_is_wrong_with_a_word_is_said_in_one_line(words: tuple[str, ...], what: str) -> None:
    with pytest.raises(GpurunError) as refused:
        optimized(*words)
    assert refused.value.what == what
    assert refused.value.code == 2
    assert refused.value.todo


@pytest.mark.parametrize("flags", [[], ["--settings", "kept.json"]])
def test_nothing_is_tuned_without_being_asked_to(flags: list[str]) -> None:
    with pytest.raises(GpurunError) as refused:
        parse([*flags, "train.py", "--lr", "@tune:0.1,0.2"], {})
    assert refused.value.what == "--lr: @tune:0.1,0.2 needs --optimize"
    assert refused.value.todo == "add --optimize, or write one value such as 0.1"


def test_the_words_of_a_tuning_find_it_again() -> None:
    assert parse(["--tuned", "train.py", "--lr", "@tune:1,2"], {}).target.args == ("--lr", "1")
