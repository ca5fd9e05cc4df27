"""What is noted of torch's agent while it runs ranks, by a stand-in for the agent."""

from __future__ import annotations

import enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpurun.launch.attempt_log import AttemptLog, NodeLost
from gpurun.measure.run_events import read_attempts


class State(enum.Enum):
    HEALTHY = 1
    UNHEALTHY = 2
    FAILED = 3
    SUCCEEDED = 4


NEAR = SimpleNamespace(addr="near")
FAR = SimpleNamespace(addr="far")


class Agent:
    """An agent that finds what `finds` lists, one entry a look."""

    def __init__(self, *finds: State, restarts: int = 0) -> None:
        self.finds, self._remaining_restarts, self._pcontext = list(finds), restarts, None

    def _start_workers(self, group: Any) -> dict[int, int]:
        return {0: 1}

    def _monitor_workers(self, group: Any) -> Any:
        dead = SimpleNamespace(local_rank=0, pid=7, exitcode=3, error_file_data={}, timestamp=1)
        return SimpleNamespace(state=self.finds.pop(0), failures={0: dead})

    def _restart_workers(self, group: Any) -> None:
        self._start_workers(group)


def node(*participants: Any) -> Any:
    """A group of workers whose rendezvous knows these participants."""
    nodes = {each: rank for rank, each in enumerate(map(_Node, participants))}
    state = SimpleNamespace(participants=nodes)
    handler = SimpleNamespace(
        _state_holder=SimpleNamespace(state=state),
        _this_node=_Node(NEAR),
        _bootstrap_store_info="old",
        _shared_tcp_store_server="old",
    )
    workers = [SimpleNamespace(world_size=2)]
    return SimpleNamespace(workers=workers, spec=SimpleNamespace(rdzv_handler=handler))


class _Node:
    """A participant; equal by address, as torch's are."""

    def __init__(self, place: Any) -> None:
        self.addr = place.addr

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Node) and other.addr == self.addr

    def __hash__(self) -> int:
        return hash(self.addr)


def lose(group: Any, place: Any) -> None:
    group.spec.rdzv_handler._state_holder.state.participants.pop(_Node(place))


def test_a_restart_has_a_new_store_and_each_attempt_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent, group = Agent(State.FAILED, State.HEALTHY, State.SUCCEEDED, restarts=1), node(NEAR)
    with AttemptLog(tmp_path).watching(Agent):
        agent._start_workers(group)
        agent._monitor_workers(group)
        agent._restart_workers(group)
        agent._monitor_workers(group)
        agent._monitor_workers(group)
    assert group.spec.rdzv_handler._bootstrap_store_info is None
    assert [(a.number, a.outcome) for a in read_attempts(tmp_path)] == [
        (1, "failed"),
        (2, "succeeded"),
    ]
    line = "gpurun: attempt 1: rank 0 failed first: exit code 3 (process 7)"
    assert capsys.readouterr().err.startswith(line)


def test_a_node_that_left_ends_the_job_or_restarts_the_ranks(tmp_path: Path) -> None:
    for restarts in (0, 1):
        attempts = AttemptLog(tmp_path)
        agent, group = Agent(State.HEALTHY, State.HEALTHY, restarts=restarts), node(NEAR, FAR)
        with attempts.watching(Agent):
            agent._start_workers(group)
            agent._monitor_workers(group)
            lose(group, FAR)
            if restarts:
                assert agent._monitor_workers(group).state is State.UNHEALTHY
            else:
                with pytest.raises(NodeLost, match="node far is gone"):
                    agent._monitor_workers(group)
        assert [a.outcome for a in attempts.done] == ["node lost"]


def test_a_launcher_that_was_late_does_not_take_itself_for_dead() -> None:
    agent, group = Agent(State.HEALTHY, State.HEALTHY), node(NEAR, FAR)
    with AttemptLog(None).watching(Agent):
        agent._start_workers(group)
        agent._monitor_workers(group)
        lose(group, NEAR)
        assert agent._monitor_workers(group).state is State.HEALTHY


def test_ranks_that_start_again_for_another_node_are_a_new_attempt() -> None:
    attempts = AttemptLog(None)
    agent, group = Agent(State.SUCCEEDED), node(NEAR)
    before = vars(Agent)["_start_workers"]
    with attempts.watching(Agent):
        agent._start_workers(group)
        agent._restart_workers(group)
        agent._monitor_workers(group)
    assert [a.outcome for a in attempts.done] == ["regrouped", "succeeded"]
    assert vars(Agent)["_start_workers"] is before, "the agent's class is as it was"
