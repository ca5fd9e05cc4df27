"""`--ddp` learns which loaders train; told here are the ways in which scripts read them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpurun.runtime.ddp import loader_roles as module
from gpurun.runtime.ddp.loader_roles import LoaderPass, LoaderRoles


class Loader:
    """What stands for a DataLoader that is built at a line of the script."""

    def __init__(self, where: str = "") -> None:
        self.where = where


class Script:
    """A script's course: the loaders that it reads, and the mode of its model."""

    def __init__(self) -> None:
        self.roles = LoaderRoles(strict=True)
        self.training = True

    def open(self, loader: Loader, ordered: bool = False) -> LoaderPass:
        """As the sharding does: what is known, else the model's mode."""
        known = self.roles.known(loader, ordered, self.training)
        shared = self.training if known is None else known
        return self.roles.opened(loader, ordered, self.training, shared)

    def read(self, loader: Loader, batches: int = 3) -> Iterator[LoaderPass]:
        loader_pass = self.open(loader)
        for _ in range(batches):
            self.roles.handed(loader_pass)
            yield loader_pass
        self.roles.ended(loader_pass)

    def train(self) -> None:
        self.roles.called(self.training)
        self.roles.went_back(self.training)
        self.roles.stepped(self.training)

    def evaluate(self, loader: Loader) -> bool:
        """Gradients on; whether ranks saw shares."""
        shared = False
        for loader_pass in self.read(loader):
            self.roles.called(self.training)
            shared = loader_pass.shared
        return shared


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    monkeypatch.setattr(module, "_line_of", lambda loader: loader.where)
    monkeypatch.setattr(module, "warn", TOLD.append)
    TOLD.clear()
    return Script()


TOLD: list[str] = []


def epoch(script: Script, loader: Loader) -> bool:
    """Train; whether ranks had shares."""
    shared = False
    for loader_pass in script.read(loader):
        shared = loader_pass.shared
        script.train()
    return shared


def test_an_evaluation_in_training_mode_is_known_after_its_first_pass(script: Script) -> None:
    train, held_out = Loader(), Loader()
    seen = [(epoch(script, train), script.evaluate(held_out)) for _ in range(3)]
    assert seen == [(True, True), (True, False), (True, False)]
    assert len(TOLD) == 1
    assert "cover only each rank's share of the batches" in TOLD[0]


def test_a_training_in_evaluation_mode_is_known_after_its_first_step(script: Script) -> None:
    train = Loader()
    script.training = False
    assert [epoch(script, train) for _ in range(3)] == [False, True, True]
    assert TOLD == []


def test_every_rank_has_all_of_a_batch_until_then(script: Script) -> None:
    script.training = False
    for _ in script.read(Loader()):
        assert script.roles.repeated(in_training=False)
        script.train()
    for _ in script.read(Loader()):
        script.roles.called(in_training=False)
    script.training = True
    assert not script.roles.repeated(in_training=True), (
        "what was read to evaluate feeds no training"
    )


def test_train_mode_that_comes_inside_the_loop_is_learned(script: Script) -> None:
    train, shared = Loader(), []
    for _ in range(3):
        script.training = False
        for loader_pass in script.read(train):
            script.training = True
            shared.append(loader_pass.shared)
            script.train()
    assert shared == [False] * 3 + [True] * 6


def test_an_accuracy_over_the_training_loader_does_not_unlearn_it(script: Script) -> None:
    train = Loader()
    seen = [(epoch(script, train), script.evaluate(train)) for _ in range(3)]
    assert seen == [(True, True)] * 3, "one loader in one mode is one or the other"
    epoch(script, train)
    assert len(TOLD) == 1


def test_gradients_of_an_evaluation_are_no_training(script: Script) -> None:
    """Adversarial examples: the loss goes back to the input, and no step follows."""
    train, attacked = Loader(), Loader()
    for _ in range(3):
        script.training = True
        epoch(script, train)
        script.training = False
        for loader_pass in script.read(attacked):
            assert not loader_pass.shared
            script.roles.called(in_training=False)
            script.roles.went_back(in_training=False)


def test_an_endless_validation_between_steps_is_no_training(script: Script) -> None:
    train, held_out = Loader(), Loader()
    for _ in range(3):
        validation = script.read(held_out)
        for loader_pass in script.read(train, 2):
            assert loader_pass.shared
            script.training = False
            assert not next(validation).shared
            script.roles.called(in_training=False)
            script.training = True
            script.train()
        script.training = False
        assert not script.open(held_out).shared
        script.training = True


def test_loaders_that_are_read_together_are_known_together(script: Script) -> None:
    """The second one never says that it is over: `zip` does not ask it."""
    a, b = Loader(), Loader()
    script.training = False
    for _ in range(3):
        loader_pass = script.open(b)
        for one in script.read(a):
            script.roles.handed(loader_pass)
            assert one.shared == loader_pass.shared
            script.train()
    assert one.shared


def test_batches_that_are_kept_and_trained_on_later_are_accepted(script: Script) -> None:
    assert all(loader_pass.shared for loader_pass in script.read(Loader()))
    for _ in range(3):
        script.train()
    assert script.evaluate(Loader())
    assert TOLD == []


def test_one_batch_an_epoch_that_is_read_ahead_is_a_training(script: Script) -> None:
    train = Loader()
    for _ in range(3):
        (loader_pass,) = script.read(train, 1)
        assert loader_pass.shared
        script.train()
    assert TOLD == []


def test_what_is_computed_of_the_training_loader_beforehand_is_told(script: Script) -> None:
    """And it trains all the same: a count of its batches is no reason to end."""
    train = Loader("train.py:12")
    list(script.read(train))
    assert [epoch(script, train) for _ in range(2)] == [True, True]
    (told,) = TOLD
    assert told.startswith("the DataLoader of train.py:12 was read to its end and trained nothing")


def test_an_attack_in_evaluation_mode_within_a_step_is_part_of_the_training(script: Script) -> None:
    train = Loader()
    for _ in range(3):
        for loader_pass in script.read(train):
            assert loader_pass.shared
            script.roles.called(in_training=False)
            script.roles.went_back(in_training=False)
            script.train()
    assert TOLD == []


def test_batches_of_both_kinds_that_are_kept_count_as_shares(script: Script) -> None:
    list(script.read(Loader()))
    held_out = script.open(Loader(), ordered=True)
    held_out.shared = False
    script.roles.handed(held_out)
    script.roles.ended(held_out)
    script.roles.called(in_training=True)
    assert not script.roles.repeated(in_training=True)


def test_steps_that_no_optimizer_makes_leave_it_open(script: Script) -> None:
    """`p -= lr * p.grad`: nothing is known, and nothing is told."""
    train = Loader()
    for _ in range(3):
        for loader_pass in script.read(train):
            assert loader_pass.shared
            script.roles.called(in_training=True)
            script.roles.went_back(in_training=True)
    script.roles.finish()
    assert TOLD == []


def test_a_loader_that_is_gone_teaches_its_line(script: Script) -> None:
    script.training = False
    loader_pass = script.open(Loader("train.py:12"))
    script.roles.handed(loader_pass)
    script.train()
    assert loader_pass.loader() is None
    assert script.open(Loader("train.py:12")).shared


def test_of_another_loader_it_is_told(script: Script) -> None:
    list(script.read(Loader("train.py:12")))
    script.open(Loader("train.py:20"))
    assert TOLD[0].startswith("the DataLoader of train.py:12 was read to its end")


def test_a_loader_that_is_only_counted_is_no_training(script: Script) -> None:
    train, counted = Loader(), Loader()
    for _ in range(2):
        epoch(script, train)
        list(script.read(counted))
    epoch(script, train)
    assert not script.open(counted).shared


def test_the_last_evaluation_of_a_script_is_told_at_its_end(script: Script) -> None:
    train, held_out = Loader(), Loader("test.py:3")
    epoch(script, train)
    script.evaluate(held_out)
    assert TOLD == []
    script.roles.finish()
    assert len(TOLD) == 1


def test_loaders_that_are_built_anew_are_known_by_their_line(script: Script) -> None:
    script.training = False
    first = epoch(script, Loader("train.py:12"))
    assert (first, epoch(script, Loader("train.py:12"))) == (False, True)


def test_a_line_that_builds_both_kinds_tells_nothing(script: Script) -> None:
    epoch(script, Loader("data.py:5"))
    script.evaluate(Loader("data.py:5"))
    assert script.roles.known(Loader("data.py:5"), ordered=False, in_training=True) is None
