"""Prepare a trial before torch is imported."""

from __future__ import annotations

from gpurun.records.spec import TrialSpec
from gpurun.runtime.core import hub_uploads, seeds
from gpurun.runtime.observe import argparse_options, import_log
from gpurun.runtime.trial import folder_renames


def prepare(spec: TrialSpec) -> None:
    """Seed the script, watch its command line and imports, block uploads, let folders move."""
    seeds.seed_everything(spec.seed, spec.seed_offset)
    argparse_options.install()
    hub_uploads.block_uploads()
    folder_renames.install()
    import_log.begin()
