"""What is noted of a root's call without gradients, on small tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gpurun.records.messages.training_events import OutputsEvent
from gpurun.runtime.core.recorder import RECORDER
from gpurun.runtime.trial.audit_outputs import OutputsAudit
from gpurun.runtime.trial.tensor_figures import MOST_TENSORS, Sampler, tensors_in


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    monkeypatch.setattr(RECORDER, "event", found.append)
    return found


@pytest.mark.parametrize("training", [True, False])
def test_batch_statistics_that_move_in_a_call_are_noted(written: list[Any], training: bool) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).train(training)
    audit = OutputsAudit()
    given = torch.arange(12.0).reshape(3, 4)
    with torch.no_grad():
        seen = audit.before(model, (given,), {})
        audit.after(seen, model(given))
        audit.finish()
    (event,) = written
    assert isinstance(event, OutputsEvent)
    assert event.moved is training
    assert event.draws is False


def test_the_lead_of_a_rows_largest_number_is_noted() -> None:
    found, _ = tensors_in(torch.tensor([[1.0, 4.0, 3.5], [2.0, -1.0, 0.0]]))
    (figures,) = (taken.read() for taken in Sampler().take(found, call=1))
    assert figures.largest == (1, 0)
    assert figures.tops == (4.0, 2.0)
    assert figures.margins == (0.5, 2.0)


def test_arrays_and_eight_bits_are_read_and_what_is_too_much_is_not() -> None:
    import numpy

    outputs = [numpy.ones(3), torch.ones(4).to(torch.float8_e4m3fn)]
    found, _ = tensors_in(outputs)
    array, small = (taken.read() for taken in Sampler().take(found, call=1))
    assert array.values == (1.0, 1.0, 1.0)
    assert small.values == (1.0, 1.0, 1.0, 1.0)
    assert small.dtype == "float8_e4m3fn"
    found, _ = tensors_in([torch.ones(1)] * (MOST_TENSORS + 5))
    last = Sampler().take(found, call=1)[-1].read()
    assert (last.path, last.values) == ("the further tensors", ())


def test_containers_that_hold_each_other_are_opened_once() -> None:
    class Linked:
        pass

    nodes = [Linked() for _ in range(40)]
    for node in nodes:
        node.others, node.value = nodes, torch.ones(1)
    found, structure = tensors_in(nodes[0])
    assert found
    assert len(structure) <= 1000
