"""docker-compose.yml without an engine: what Compose makes of it, and its services as processes of this machine."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
COMPOSE = ROOT / "docker-compose.yml"


def program(name: str) -> str:
    """A program that a wheel puts beside Python."""
    return str(Path(sys.executable).with_name(f"{name}.exe" if sys.platform == "win32" else name))


@cache
def composed(*profiles: str) -> Any:
    """The file as Compose reads it: anchors, merges and short forms resolved."""
    chosen = [word for profile in profiles for word in ("--profile", profile)]
    command = [program("docker-compose"), "-f", str(COMPOSE), *chosen, "config", "--format", "json"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
