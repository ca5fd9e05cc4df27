"""What nodes say to each other: who they are, what to launch, and how it ended."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import TypeVar

from gpurun.errors import GpurunError
from gpurun.records.codec import RecordError, from_json, to_json
from gpurun.records.spec import Setting
from gpurun.scaling.launch import Ended, Order

T = TypeVar("T")


@dataclass(frozen=True)
class Facts:
    """What a node says of itself when it joins. All must agree in the fields of `SAME`.

    `ranks`: devices it can have. `script`: a digest of its text, "" where the target is no file;
    `command`: what is launched; `exchange`: how gradients are exchanged.
    """

    host: str
    device: str
    ranks: int
    command: tuple[str, ...]
    script: str
    counts: tuple[int, ...]
    strong: bool
    exchange: tuple[Setting, ...]
    isolation: str
    gpurun: str
    torch: str


SAME = {
    "gpurun": "version of gpurun",
    "torch": "version of torch",
    "command": "command",
    "script": "script",
    "counts": "list of counts",
    "strong": "kind of scaling",
    "exchange": "exchange of gradients",
    "isolation": "way to isolate launches",
}
"""Fields of `Facts` that must be alike on all nodes, and what they are called."""
assert set(SAME) < {field.name for field in fields(Facts)}


@dataclass(frozen=True)
class Part:
    """What a node does of a launch: `ranks` of its own, as one of `nodes` nodes.

    `number`: of the launch. `options`: how gradients are exchanged. `layered`: on top of what the
    first launch wrote. `distributed`: by what the script is known to be distributed by itself.
    `host` and `port`: where the agents of several nodes meet.
    """

    number: int
    order: Order
    ranks: int
    options: tuple[Setting, ...]
    distributed: str | None
    layered: bool
    nodes: int = 1
    host: str = ""
    port: int = 0

    @property
    def name(self) -> str:
        """Of its folder."""
        mute = "" if self.order.exchange else "-no-exchange"
        plain = self.order.options is None and not self.order.settings
        other = "" if plain else "-other-exchange"
        return f"{self.number:02d}-of-{self.order.ranks}{mute}{other}"


@dataclass(frozen=True)
class PartEnded:
    """How a node's part ended, with what it recorded (see `handing_over`)."""

    ended: Ended
    records: dict[str, str]


@dataclass(frozen=True)
class Over:
    """All is over: what the first node found; `why` it could not go on, "" where it could."""

    verdict: str
    exit_code: int
    why: str = ""


Message = Facts | Part | PartEnded | Over


def write_message(message: Message) -> str:
    """The text of a message, with its kind."""
    return json.dumps({"kind": type(message).__name__, "body": to_json(message)})


def read_message(kind: type[T], text: str) -> T:
    """The message of that kind; `GpurunError` where it is another one, or of another version."""
    try:
        document = json.loads(text)
        if document["kind"] == kind.__name__:
            return from_json(kind, document["body"])
    except (ValueError, KeyError, TypeError, RecordError):
        pass
    raise GpurunError(
        "the nodes do not understand each other", "install the same gpurun on all of them"
    )


def kind_of(text: str) -> str:
    """The kind of a message."""
    return str(json.loads(text)["kind"])
