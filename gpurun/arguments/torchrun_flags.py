"""torchrun's flags, which gpurun only recognises: torch's own parser reads them."""

from __future__ import annotations

from collections.abc import Mapping

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
    """Whether a `PET_*` variable sets one of torchrun's flags."""

    def variable(name: str) -> str:
        return environment.get("PET_" + name.upper().replace("-", "_"), "")

    return any(variable(n) for n in TORCHRUN_VALUES) or any(
        variable(n) not in ("", "0") for n in TORCHRUN_SWITCHES
    )


def nodes_asked_for(options: Options, environment: Mapping[str, str]) -> str | None:
    """The word that asks for more nodes than one; None where nothing does. The flag wins."""
    flags = [word for word in options.torchrun if word.startswith("--nnodes=")]
    variable = environment.get("PET_NNODES")
    asked = [f"PET_NNODES={variable}"] if variable else []
    word = [*asked, *flags][-1:]
    return next((w for w in word if w.partition("=")[2] not in ("1", "1:1")), None)
