"""The start of a compiled script: expected by the size of the model and the cores."""

from __future__ import annotations

from dataclasses import replace

from gpurun.knobs.compiling.compile import Compile
from tests.unit.knob_facts import MACHINE, ROOT, facts


def test_large_models_and_few_cores_compile_longer() -> None:
    seconds = Compile().seconds_to_start
    usual = seconds(facts())
    assert seconds(facts(roots=(replace(ROOT, module_types={"Linear": 160}),))) > 3 * usual
    repeated = replace(ROOT, module_types={"Linear": 160}, blocks={"Block": 80})
    assert seconds(facts(roots=(repeated,))) == usual, "one block is compiled"
    assert seconds(facts(machine=replace(MACHINE, cores=2.0))) == 2 * usual
