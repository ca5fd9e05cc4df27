"""The ceilings of a training in words."""

from __future__ import annotations

from gpurun.formatting.number_text import number
from gpurun.records.tuning import Ceilings


def ceilings_sentence(ceilings: Ceilings) -> str:
    """The ceilings in one line; "" where none was measured."""
    rates = (
        ("loader alone", ceilings.loader_samples_per_second),
        ("model alone", ceilings.model_samples_per_second),
        ("the script", ceilings.script_samples_per_second),
    )
    if rates[0][1] is None and rates[1][1] is None:
        return ""
    told = "; ".join(f"{name} {number(rate)} samples/s" for name, rate in rates if rate is not None)
    return f"as it is: {told}"
