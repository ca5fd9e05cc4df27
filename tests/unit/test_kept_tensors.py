"""What a forward pass leaves in its model is found, and copied out of the graphs' memory."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gpurun.knobs.applied.compiling.model_parts import KeptTensors


class Follows(nn.Module):
    """A model with a mask made at its first call, and weights that follow others."""

    mask: Tensor | None = None
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)
        self.register_buffer("count", torch.zeros(1))
        self.norm = nn.BatchNorm1d(2)

    def forward(self, x: Tensor, keep: str) -> Tensor:
        if keep == "mask":
            self.mask = torch.ones(2)
        elif keep == "weight":
            self.second.weight.data = 0.9 * self.second.weight.data
        elif keep == "buffer":
            self.count = self.count + 1
        elif keep == "state":
            self.state = self.first(x)
        out: Tensor = self.norm(self.first(x))
        return out


def test_what_is_new_is_named_and_has_memory_of_its_own() -> None:
    for keep, name in (
        ("mask", "mask"), ("weight", "weight"), ("buffer", "count"), ("state", "state"), ("", None),
    ):  # fmt: skip
        model = Follows()
        kept = KeptTensors(model)
        model(torch.ones(4, 2), keep)
        held = {"mask": model.mask, "weight": model.second.weight, "buffer": model.count}.get(keep)
        before = None if held is None else held.data_ptr()
        assert kept.copy_new() == name, "a normalisation's statistics stay where they are"
        now = {"mask": model.mask, "weight": model.second.weight, "buffer": model.count}.get(keep)
        assert before is None or (now is not None and now.data_ptr() != before)
        assert model.second.weight.requires_grad
