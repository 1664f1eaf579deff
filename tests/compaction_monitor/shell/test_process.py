"""How the worker's process ends when parts of it do not work any more; each part for itself, without a broker."""

from __future__ import annotations

import subprocess
import sys

SILENT = """
import os
from contextlib import suppress
from compaction_monitor.shell.worker import _end
os.set_blocking(2, False)
with suppress(BlockingIOError):
    while True:
        os.write(2, b"x")
os.set_blocking(2, True)
_end(75, "stuck")
"""


def test_it_ends_though_nobody_reads_its_log() -> None:
    with subprocess.Popen([sys.executable, "-c", SILENT], stderr=subprocess.PIPE) as process:
        try:
            assert process.wait(60) == 75
        finally:
            process.kill()
