"""Where the isolation's tests run, and as whom; the sides of live pairs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpurun.isolation import sandbox
from tests.forked import NURSERY
from tests.integration.isolation_launcher import ME, User, open_folder, ordinary_user
from tests.integration.live_sides import Sides


@pytest.fixture(autouse=True)
def _sandboxed_scripts_are_forks(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a test that is marked `forked`, those of sandboxes that this very process makes, too."""
    mark = request.node.get_closest_marker("forked")
    if mark is not None and mark.args != (False,):
        monkeypatch.setattr(sandbox, "_supervisor_process", NURSERY.supervisor)


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A folder that other users can reach."""
    with open_folder() as folder:
        yield folder


@pytest.fixture(params=["who runs the tests", "an ordinary user"])
def user(request: pytest.FixtureRequest, open_path: Path) -> User:
    """Who launches: each in turn; `open_path` is theirs."""
    if request.param == "who runs the tests":
        return ME
    found = ordinary_user()
    if found is None:
        pytest.skip("not root, or no ordinary user with a python it may run")
    found.give(open_path)
    return found


@pytest.fixture
def sides(tmp_path: Path, clean_environment: dict[str, str]) -> Iterator[Sides]:
    """Two scripts that can be launched as the sides of a live pair."""
    with ExitStack() as stack:
        yield Sides(tmp_path, clean_environment, stack)


@pytest.fixture
def settings_of_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The git of the tests has no settings of who runs them."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
