"""A knob is one file: putting it into the folder, or naming it, is all there is to do."""

from __future__ import annotations

import importlib.util
import os
import pickle
import py_compile
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpurun import knobs
from gpurun.errors import GpurunError
from gpurun.knobs import all_knobs, find
from tests.unit.knob_facts import facts

TRIVIAL = '''
"""A knob of the user's own."""
from gpurun.knobs.api import Effect, Knob

class Trivial(Knob):
    """Does nothing, for the test."""

    name = "{name}"
    effect = Effect.NUMERICS
    order = {order}

    def candidates(self, facts):
        return [facts.device + "!"]

    def apply(self, value, hooks):
        hooks.applied(value)
'''


@pytest.fixture(autouse=True)
def _no_user_knobs_left() -> Iterator[None]:
    yield
    for name in [n for n in sys.modules if n.startswith(knobs.USER_PACKAGE)]:
        del sys.modules[name]


def write_knob(folder: Path, stem: str, name: str = "", order: int = 1) -> Path:
    file = folder / f"{stem}.py"
    file.write_text(TRIVIAL.format(name=name or stem, order=order))
    return file


def test_a_knob_file_of_the_user_is_proposed(tmp_path: Path) -> None:
    file = write_knob(tmp_path, "trivial")
    assert find("trivial", [str(file)]).candidates(facts()) == ["cpu!"]


def test_every_knob_in_a_folder_of_the_user_is_found_and_other_files_are_not_in_the_way(
    tmp_path: Path,
) -> None:
    write_knob(tmp_path, "one")
    write_knob(tmp_path, "two")
    (tmp_path / "kernels.py").write_text("SCALE = 2\n")
    names = {knob.name for knob in all_knobs([str(tmp_path)])}
    assert {"one", "two", "batch_size"} <= names


def test_a_file_put_into_the_package_folder_is_a_knob(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_knob(tmp_path, "dropped_in")
    monkeypatch.setattr(knobs, "__path__", [*knobs.__path__, str(tmp_path)])
    importlib.invalidate_caches()
    assert find("dropped_in").candidates(facts()) == ["cpu!"]


def test_the_order_is_by_order_and_then_by_name(tmp_path: Path) -> None:
    write_knob(tmp_path, "b_last", order=10_000)
    write_knob(tmp_path, "a_last", order=10_000)
    write_knob(tmp_path, "first", order=-1)
    names = [knob.name for knob in all_knobs([str(tmp_path)])]
    assert names[0] == "first"
    assert names[-2:] == ["a_last", "b_last"]


def test_a_users_knob_has_a_module_name_that_pickle_can_import_again(tmp_path: Path) -> None:
    knob = find("trivial", [str(write_knob(tmp_path, "trivial"))])
    assert type(knob).__module__ == "gpurun_user_knobs.trivial"
    assert isinstance(pickle.loads(pickle.dumps(knob)), type(knob))


def test_a_wrong_name_is_answered_with_the_near_one() -> None:
    with pytest.raises(GpurunError) as caught:
        find("loader_worker")
    assert "loader_workers" in caught.value.todo


def test_two_knobs_of_one_name_are_an_error_that_says_which_file(tmp_path: Path) -> None:
    write_knob(tmp_path, "mine", name="batch_size")
    with pytest.raises(GpurunError, match="two knobs are named 'batch_size'") as caught:
        all_knobs([str(tmp_path)])
    assert "mine.py" in caught.value.todo


def test_two_files_of_one_stem_are_an_error_not_a_silent_choice(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = write_knob(tmp_path / "a", "same", name="x")
    second = write_knob(tmp_path / "b", "same", name="y")
    with pytest.raises(GpurunError, match="same name"):
        all_knobs([str(first), str(second)])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", "defines no knob"),
        (TRIVIAL.format(name="n", order=1) * 2 + "class Other(Trivial): name = 'o'\n", "2 knobs"),
        ("import not_there\n", "cannot be imported: ModuleNotFoundError"),
    ],
)
def test_a_named_file_that_is_no_knob_is_an_error_of_one_line(
    tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "off.py"
    file.write_text(text)
    with pytest.raises(GpurunError, match=message) as caught:
        all_knobs([str(file)])
    assert "\n" not in caught.value.what
    assert caught.value.todo


@pytest.mark.parametrize(
    ("part", "instead", "message"),
    [
        ("effect = Effect.NUMERICS", 'effect = "numerics"', "`effect` 'numerics', no member of"),
        ("effect = Effect.NUMERICS", "", "has no `effect`"),
        ('name = "mine"', "", "has no `name`"),
        ('name = "mine"', 'name = "my knob"', "`name` 'my knob', no identifier"),
        ('name = "mine"', "name = 3", "`name` 3, no identifier"),
        ("def candidates", "def propose", "has no `candidates`"),
        ("def apply", "def turn", "has no `apply`"),
        ("order = 1", 'order = "early"', "`order` 'early', no number"),
        ("order = 1", 'acts_on = "loss"', "`acts_on` 'loss'"),
        ("order = 1", "environment = {}", "`environment` that is no method"),
        ("order = 1", "def __init__(self, more): pass", "cannot be built: TypeError"),
        ("(Knob)", "", "is none to gpurun"),
    ],
)
@pytest.mark.parametrize("in_folder", [False, True])
def test_a_knob_that_lacks_something_is_named_with_what_is_wrong(
    tmp_path: Path, part: str, instead: str, message: str, in_folder: bool
) -> None:
    text = TRIVIAL.format(name="mine", order=1)
    assert part in text
    file = tmp_path / "mine.py"
    file.write_text(text.replace(part, instead))
    with pytest.raises(GpurunError) as caught:
        all_knobs([str(tmp_path if in_folder else file)])
    assert f"{file}: the knob Trivial " in caught.value.what
    assert message in caught.value.what
    assert "\n" not in caught.value.what
    assert caught.value.todo


def test_a_base_class_of_a_knob_in_the_same_file_is_no_second_knob(tmp_path: Path) -> None:
    text = TRIVIAL.format(name="mine", order=1).replace("(Knob)", "(Shared)")
    file = tmp_path / "mine.py"
    file.write_text(text.replace("class Trivial", "class Shared(Knob):\n    pass\n\nclass Trivial"))
    assert find("mine", [str(file)]).effect.value == "numerics"


@pytest.mark.parametrize("text", [None, "def broken(:\n", "raise SystemExit('no')\n"])
def test_a_path_without_a_knob_is_named_with_where_it_was_named(
    tmp_path: Path, text: str | None
) -> None:
    file = tmp_path / "mine.py"
    if text is not None:
        file.write_text(text)
    with pytest.raises(GpurunError, match=r"gpurun\.toml.*mine\.py"):
        all_knobs([str(file)])


def test_every_knob_documents_what_it_does_and_how_it_bites() -> None:
    for knob in all_knobs():
        assert "Risks:" in (type(knob).__doc__ or ""), knob.name
        assert "Helps " in (type(knob).__doc__ or "") or knob.name == "compile", knob.name


def test_asking_every_knob_for_candidates_imports_no_torch() -> None:
    import subprocess

    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from knob_facts import facts, gpu_facts\n"
        "from gpurun.knobs import all_knobs\n"
        "[k.candidates(f) for k in all_knobs() for f in (facts(), gpu_facts())]\n"
        "assert 'torch' not in sys.modules\n"
    )
    here = Path(__file__).resolve().parent
    subprocess.run([sys.executable, "-c", code, str(here)], check=True, cwd=here.parents[1])


def test_a_knob_file_is_compiled_anew_whatever_lies_in_its_cache(tmp_path: Path) -> None:
    file, other = write_knob(tmp_path, "mine"), tmp_path / "other"
    other.write_text("raise SystemExit('from the cache')\n".ljust(file.stat().st_size))
    for path in (file, other):
        os.utime(path, (1_600_000_000, 1_600_000_000))
    py_compile.compile(str(other), importlib.util.cache_from_source(str(file)))
    assert find("mine", [str(file)]).name == "mine"
