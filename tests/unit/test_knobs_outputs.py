"""Outputs keep their containers: only the tensors in them change."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import torch

from gpurun.knobs.applied.root_calls import map_tensors

Pair = namedtuple("Pair", "a b")


@dataclass(frozen=True)
class Output:
    loss: torch.Tensor
    logits: tuple[torch.Tensor, ...]
    name: str = "x"


class ModelOutput(OrderedDict):  # type: ignore[type-arg]
    """As transformers' class of that name: keys are attributes too."""

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        super().__setattr__(key, value)


def float32(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype is torch.bfloat16 else tensor


half = torch.ones(2, dtype=torch.bfloat16)
whole = torch.ones(2, dtype=torch.int64)


def test_builtin_containers_at_any_depth() -> None:
    result = map_tensors({"a": [half, (half, whole)], "b": "text"}, float32)
    assert result["a"][0].dtype is torch.float32
    assert result["a"][1][0].dtype is torch.float32
    assert result["a"][1][1] is whole
    assert result["b"] == "text"


def test_named_tuples_and_frozen_dataclasses_keep_their_type() -> None:
    pair = map_tensors(Pair(half, 3), float32)
    assert isinstance(pair, Pair)
    assert pair.a.dtype is torch.float32
    output = Output(half, (half,))
    result = map_tensors(output, float32)
    assert type(result) is Output
    assert result.logits[0].dtype is torch.float32
    assert output.loss.dtype is torch.bfloat16, "what the model returned is not written to"


def test_a_model_output_keeps_keys_and_attributes_in_step() -> None:
    output = ModelOutput()
    output["logits"] = half
    result = map_tensors(output, float32)
    assert type(result) is ModelOutput
    assert result["logits"] is result.logits
    assert result.logits.dtype is torch.float32


def test_the_return_types_of_torch_and_packed_sequences_survive() -> None:
    top = map_tensors(torch.max(half.reshape(1, 2), dim=1), float32)
    assert top.values.dtype is torch.float32
    packed = torch.nn.utils.rnn.pack_sequence([half.reshape(2, 1)])
    assert map_tensors(packed, float32).data.dtype is torch.float32


def test_what_needs_no_change_is_returned_itself() -> None:
    for value in ({"a": whole}, [whole], (whole,), Pair(whole, 1), None, 3, object()):
        assert map_tensors(value, float32) is value


def test_a_container_that_cannot_be_rebuilt_is_returned_as_it_is() -> None:
    class Odd(tuple):  # type: ignore[type-arg]
        def __new__(cls, a: Any, b: Any) -> Odd:
            return super().__new__(cls, (a, b))

    odd = Odd(half, half)
    assert map_tensors(odd, float32) is odd
