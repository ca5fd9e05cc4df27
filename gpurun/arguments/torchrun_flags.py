"""torchrun's flags, which gpurun only recognises: torch's own parser reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpurun.arguments.options import Options

TORCHRUN_SWITCHES = ("standalone", "run-path", "virtual-local-rank")
TORCHRUN_VALUES = (
    "nnodes",
    "nproc-per-node",
    "rdzv-backend",
    "rdzv-endpoint",
    "rdzv-id",
    "rdzv-conf",
    "max-restarts",
    "monitor-interval",
    "start-method",
    "event-log-handler",
    "role",
    "log-dir",
    "redirects",
    "tee",
    "local-ranks-filter",
    "duplicate-stdout-filters",
    "duplicate-stderr-filters",
    "node-rank",
    "master-addr",
    "master-port",
    "local-addr",
    "logs-specs",
    "numa-binding",
    "signals-to-handle",
    "shutdown-timeout",
)


def asks_for_ranks(environment: Mapping[str, str]) -> bool:
    """True if a `PET_*` variable sets one of torchrun's flags."""

    values = [environment.get(torchrun_variable(name), "") for name in TORCHRUN_VALUES]
    switches = [environment.get(torchrun_variable(name), "") for name in TORCHRUN_SWITCHES]
    return any(values) or any(value not in ("", "0") for value in switches)


def is_given(name: str, torchrun: Sequence[str], environment: Mapping[str, str]) -> bool:
    """True if the flag `name` ("nnodes") is among the words, or `PET_NNODES` is set."""
    typed = (word.replace("_", "-").partition("=")[0] for word in torchrun)
    return f"--{name}" in typed or bool(environment.get(torchrun_variable(name)))


def torchrun_variable(name: str) -> str:
    """The variable that stands for a flag of torchrun: "PET_NNODES" for "nnodes"."""
    return f"PET_{name.upper().replace('-', '_')}"


def nodes_asked_for(options: Options, environment: Mapping[str, str]) -> str | None:
    """The word that asks for more nodes than one; None where nothing does. The flag wins."""
    flags = [word for word in options.torchrun if word.startswith("--nnodes=")]
    variable = environment.get("PET_NNODES")
    asked = [f"PET_NNODES={variable}"] if variable else []
    word = [*asked, *flags][-1:]
    return next((w for w in word if w.partition("=")[2] not in ("1", "1:1")), None)
