"""The blocks of a model that "regional" compiles once, found by class, shapes and constants."""

from __future__ import annotations

import pytest
from torch import Tensor, nn

from gpurun.knobs.applied.compiling.model_parts import count_blocks, repeated_blocks


class Block(nn.Module):
    def __init__(self, width: int = 8, number: int = 0, rate: float = 0.0) -> None:
        super().__init__()
        self.layer, self.activation = nn.Linear(width, width), nn.ReLU()
        self.number, self.rate = number, rate

    def forward(self, x: Tensor) -> Tensor:
        return x


class Model(nn.Module):
    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Tensor:
        return x


def blocks(*widths: int) -> list[nn.Module]:
    return [Block(width, number) for number, width in enumerate(widths)]


SHARED = Block()
LIST = nn.ModuleList


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (Model(stem=nn.Linear(4, 8), layers=LIST(blocks(8, 8, 8))), [3]),
        (Model(layers=nn.Sequential(*blocks(8, 8, 8)), head=nn.Linear(8, 1)), [3]),
        (nn.Sequential(*blocks(8, 8, 8)), [3]),
        (Model(body=nn.ModuleDict({"h": LIST(blocks(8, 8))})), [2]),
        (Model(first=Block(), second=Block()), [2]),
        (Model(layers=LIST([LIST([Block(8), Block(4)]) for _ in range(3)])), [3, 3]),
        (Model(layers=LIST(blocks(8, 8, 4, 4, 4))), [2, 3]),
        (Model(**{x: Model(layers=LIST(blocks(8, 8, 8))) for x in ("query", "key")}), [6]),
        (Model(layers=LIST([Model(heads=LIST(blocks(8, 8, 8))) for _ in range(2)])), [2]),
        (
            nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2), 4, enable_nested_tensor=False),
            [4],
        ),
    ],
)
def test_blocks_are_the_outermost_siblings_that_compute_alike(
    model: nn.Module, found: list[int]
) -> None:
    assert [len(group) for group in repeated_blocks(model)] == found


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU()),
        Model(layers=LIST(blocks(8, 16, 32))),
        Model(layers=LIST([Block(rate=0.1 * number) for number in range(3)])),
        Model(heads=LIST(blocks(8, 8)), body=nn.Sequential(*[nn.Linear(8, 8) for _ in range(9)])),
        Model(first=SHARED, second=SHARED),
    ],
)
def test_other_models_have_no_blocks(model: nn.Module) -> None:
    assert repeated_blocks(model) == []


def test_blocks_are_counted_by_class() -> None:
    model = Model(layers=LIST(blocks(8, 8, 4, 4, 4)))
    assert count_blocks(repeated_blocks(model)) == {"Block": 5}
