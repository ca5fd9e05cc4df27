"""Prepare a trial before torch is imported."""

from __future__ import annotations

from gpurun.records.spec import TrialSpec
from gpurun.runtime.core import seeds
from gpurun.runtime.observe import argparse_options, import_log
from gpurun.runtime.trial import folder_renames, outside_connections, quiet_loggers


def prepare(spec: TrialSpec) -> None:
    """Seed the script, watch its command line, imports and connections, quieten loggers, let
    folders move."""
    seeds.seed_everything(spec.seed, spec.seed_offset)
    argparse_options.install()
    quiet_loggers.quieten()
    outside_connections.count()
    folder_renames.install()
    import_log.begin()
