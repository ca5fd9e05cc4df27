"""When a root module goes through its wrapper, when it gets a fresh one, and when it needs none."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gpurun.runtime.ddp import wrapped_root
from gpurun.runtime.ddp.wrapped_root import WrappedRoot


class Wrapper:
    """In place of DistributedDataParallel, which needs ranks."""

    def __init__(self, unused: bool) -> None:
        self.find_unused_parameters = unused


@pytest.fixture(autouse=True)
def _no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wrapped_root, "wrapped_weakly", lambda module, unused: Wrapper(unused))


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.heads = nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)])
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor, head: int) -> torch.Tensor:
        out: torch.Tensor = self.heads[head](self.body(x))
        return out


@pytest.fixture
def net() -> Heads:
    return Heads()


@pytest.fixture
def root(net: Heads) -> WrappedRoot:
    root = WrappedRoot(net)
    root.hold(net)
    return root


def passes(root: WrappedRoot, net: Heads, *heads: int, weighed: bool = False) -> None:
    """One call and one backward pass for each head."""
    for head in heads:
        root.called = True
        result = net(torch.ones(2, 4), head)
        root.returned(result)
        root.mark()
        (result.sum() * (net.weight if weighed else 1)).backward()
        root.look()
        root.called = False


def test_a_wrapper_fits_the_parameters_that_it_was_made_for(root: WrappedRoot, net: Heads) -> None:
    assert not root.fits()
    root.wrap(net)
    assert root.fits()
    net.body.requires_grad_(False)
    assert not root.fits()
    root.wrap(net)
    assert root.fits()
    net.body.requires_grad_(True)
    assert not root.fits()


def test_a_wrapper_does_not_fit_a_module_that_has_lost_a_layer(
    root: WrappedRoot, net: Heads
) -> None:
    root.wrap(net)
    del net.heads[1]
    assert root.renewed(net)
    root.hold(net)
    assert not root.fits()
    assert not root.renewed(net)


def test_a_pass_that_reaches_some_parameters_needs_a_wrapper_that_looks_for_the_others(
    root: WrappedRoot, net: Heads
) -> None:
    net.weight.requires_grad_(False)
    passes(root, net, 0)
    assert root.unused
    assert not root.by_hand
    root.wrap(net)
    assert root.wrapper is not None
    assert root.wrapper.find_unused_parameters
    assert not root.was_left_waiting(net.parameters())


def test_a_wrapper_that_looks_for_none_is_left_waiting(root: WrappedRoot, net: Heads) -> None:
    root.wrap(net)
    passes(root, net, 0)
    assert root.was_left_waiting(net.parameters())
    assert not root.was_left_waiting(net.body.parameters())


def test_what_the_script_uses_in_the_loss_itself_is_averaged_by_hand(
    root: WrappedRoot, net: Heads
) -> None:
    passes(root, net, 0, 1, weighed=True)
    assert root.by_hand


def test_gradients_of_passes_that_no_call_began_are_averaged_by_hand(
    root: WrappedRoot, net: Heads
) -> None:
    root.mark()
    net.heads[0](net.body(torch.ones(2, 4))).sum().backward()
    assert root.look()
    assert root.by_hand


def test_a_root_that_freezes_and_thaws_again_and_again_is_averaged_by_hand(
    root: WrappedRoot, net: Heads
) -> None:
    for _ in range(wrapped_root.MOST_WRAPPERS):
        assert not root.by_hand
        root.wrap(net)
    assert root.by_hand
