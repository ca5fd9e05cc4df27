"""Prepare a trial before torch is imported."""

from __future__ import annotations

from gpurun.records.spec import TrialSpec
from gpurun.runtime.core import seeds
from gpurun.runtime.observe import argparse_options, import_log
from gpurun.runtime.trial import outside_connections, quiet_loggers


def prepare(spec: TrialSpec) -> None:
    """Seed the script, watch its command line, imports and connections, and quieten loggers."""
    seeds.seed_everything(spec.seed, spec.seed_offset)
    argparse_options.install()
    quiet_loggers.quieten()
    outside_connections.count()
    import_log.begin()
