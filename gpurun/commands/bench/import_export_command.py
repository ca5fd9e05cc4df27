"""`gpurun bench export` and `gpurun bench import`: records go from one store to another."""

from __future__ import annotations

import sys
from pathlib import Path

from gpurun.arguments.bench_subcommand_flags import parse_exchange
from gpurun.bench.store import open_store
from gpurun.commands.bench.bench_outputs import emit_json, say
from gpurun.commands.bench.chosen_benchmarks import records_home
from gpurun.commands.verdict_line import print_verdict
from gpurun.errors import ExitCode
from gpurun.records.codec import to_json

WHERE = """\
  --store URL        the database of records; by default bench.db in the folder of records
  --out DIR          the folder of records (default .gpurun; also GPURUN_HOME)
  --quiet            print nothing but errors and the closing verdict line
"""
EXPORT_HELP = f"""\
usage: gpurun bench export FILE [flags]        all records and accepted baselines as one JSON file

FILE may be - for stdout. gpurun bench import reads it into another store.

{WHERE}"""
IMPORT_HELP = f"""\
usage: gpurun bench import FILE... [flags]     add the records of exported files

Each FILE comes from gpurun bench export, or is the JSON file of one record. Records that already
exist stay as they are. Import stops at the first damaged file; nothing from it or later files is
added. Use it to move records to another machine: a CI cache, a second database, a colleague.

{WHERE}"""


def export_records(argv: list[str]) -> int:
    """Write everything that the store holds; a file that cannot be written is an error."""
    options = parse_exchange(argv, "export")
    if options.help:
        sys.stdout.write(EXPORT_HELP)
        return int(ExitCode.OK)
    place = options.files[0]
    store = open_store(records_home(options.out), options.store, notice=say)
    if place == "-":
        export = store.everything()
        emit_json(place, to_json(export))
    else:
        export = store.export_json(Path(place))
    counts = {"records": len(export.records), "baselines": len(export.baselines)}
    if not options.quiet and place != "-":
        say(f"{place}: {counts['records']} records, {counts['baselines']} accepted baselines")
    print_verdict("exported", int(ExitCode.OK), **counts)
    return int(ExitCode.OK)


def import_records(argv: list[str]) -> int:
    """Add what the files hold, one after the other."""
    options = parse_exchange(argv, "import")
    if options.help:
        sys.stdout.write(IMPORT_HELP)
        return int(ExitCode.OK)
    store = open_store(records_home(options.out), options.store, notice=say)
    new = 0
    for place in options.files:
        added = store.import_json(Path(place))
        new += added
        if not options.quiet:
            say(f"{place}: {added} new")
    print_verdict("imported", int(ExitCode.OK), new=new)
    return int(ExitCode.OK)
