"""What the user said to torch's launcher: by a flag, or by torchrun's variable in its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def is_said(name: str, torchrun: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether the flag `name` ("nnodes") is among the words, or `PET_NNODES` is set."""
    typed = (word.replace("_", "-").partition("=")[0] for word in torchrun)
    return f"--{name}" in typed or bool(environment.get(variable_of(name)))


def variable_of(name: str) -> str:
    """The variable that stands for a flag of torchrun: "PET_NNODES" for "nnodes"."""
    return f"PET_{name.upper().replace('-', '_')}"
