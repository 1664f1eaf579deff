"""The command line. One module per group of commands; each is thin, the work is in functions that know no terminal."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of `compaction-monitor`."""
    try:
        from compaction_monitor.cli.app import app
        from compaction_monitor.cli.output import lenient
    except ModuleNotFoundError as missing:
        if missing.name not in ("typer", "rich"):
            raise
        # The base install is for agents; it has no terminal library to say this with.
        sys.stderr.write(
            f"compaction-monitor: the command line needs {missing.name}, which is not installed.\n"
            "Install an extra: pip install 'compaction-monitor[adapters]' (scan, lint), [monitor] (what needs a broker),\n"
            "[simulate], or [adapters,embedded,monitor] (demo).\n"
        )
        raise SystemExit(1) from None
    except KeyboardInterrupt:  # while it is still being imported
        raise SystemExit(130) from None
    lenient()
    app(prog_name="compaction-monitor")
