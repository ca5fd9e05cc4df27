"""The parts of the knobs that save memory: a model's blocks, gathered steps."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gpurun.knobs.applied.accumulated_steps import AccumulatedSteps
from gpurun.knobs.memory.applied.checkpointed_blocks import repeated_blocks


class Bottleneck(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.convs = nn.Sequential(nn.Conv2d(width, width, 1), nn.ReLU())


class Double(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(4, 4, 3), nn.ReLU())


class Down(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pool, self.conv = nn.MaxPool2d(2), Double()


class TestRepeatedBlocks:
    def test_those_of_a_transformer_and_not_their_parts(self) -> None:
        encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16), 3, enable_nested_tensor=False
        )
        model = nn.ModuleDict({"words": nn.Embedding(1000, 8), "encoder": encoder})
        assert repeated_blocks(model) == list(encoder.layers)

    def test_the_small_ones_of_large_stages(self) -> None:
        stages = [nn.Sequential(Bottleneck(4), Bottleneck(4)) for _ in range(3)]
        found = repeated_blocks(nn.Sequential(nn.Conv2d(3, 4, 7), *stages))
        assert [type(block) for block in found] == [Bottleneck] * 6

    def test_those_that_are_named_one_by_one(self) -> None:
        model = nn.Module()
        model.first, model.one, model.two = Double(), Down(), Down()
        found = repeated_blocks(model)
        assert [type(block) for block in found] == [Double] * 3

    def test_none_where_only_layers_repeat(self) -> None:
        assert repeated_blocks(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))) == []


class TestAccumulatedSteps:
    def test_one_call_of_several_counts(self) -> None:
        weight = nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        steps = AccumulatedSteps(3, lambda reason: pytest.fail(reason))
        steps.attach(optimizer)
        assert steps.step_counts(), "a step without a backward pass is the script's own affair"
        real = []
        for _ in range(6):
            assert steps.backward_begins() == pytest.approx(1 / 3)
            weight.sum().backward()
            steps.backward_ended()
            real.append(steps.step_counts())
            assert steps.clearing_counts() == real[-1]
        assert real == [False, False, True] * 2
