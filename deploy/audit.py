"""Known vulnerabilities in what the locks pin: `python -m deploy.audit` (`make audit`).

pip-audit asks a source of advisories; one that does not know a package, or does not answer, is no clean bill of health.

| exit code | meaning |
|---|---|
| 0 | every pinned package was looked up, and none has a known vulnerability |
| 1 | there are vulnerabilities; they are listed |
| 69 | some packages could not be looked up: nothing is known of them |
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

ROOT = Path(__file__).parents[1]
LOCKS = (ROOT / "requirements.lock", ROOT / "requirements-build.lock")
CLEAN, VULNERABLE, UNKNOWN = 0, 1, 69


def verdict(report: Mapping[str, Any]) -> tuple[int, list[str]]:
    """The exit code and what to say of pip-audit's report (its `--format json`)."""
    packages = report["dependencies"]
    found = [
        f"{package['name']} {package['version']}: {flaw['id']}, fixed in {', '.join(flaw['fix_versions']) or 'no version yet'}"
        for package in packages
        for flaw in package.get("vulns", ())
    ]
    skipped = [package["skip_reason"] for package in packages if "skip_reason" in package]
    asked = f"{len(packages) - len(skipped)} of {len(packages)} packages looked up"
    if found:
        return VULNERABLE, [*found, f"{len(found)} known vulnerabilities; {asked}."]
    if skipped or not packages:
        reasons = skipped[:3] or ["no package at all in the report"]
        return UNKNOWN, [*reasons, f"Not audited: {asked}. Run it where the source of advisories answers."]
    return CLEAN, [f"No known vulnerability; {asked}."]


def audit(*options: str) -> tuple[int, list[str]]:
    """Run pip-audit over the locks.

    Args:
        options: More options of pip-audit: another source of advisories, say.
    """
    command = [sys.executable, "-m", "pip_audit", "--require-hashes", "--disable-pip", "--format", "json"]
    command += ["--progress-spinner", "off", *options]
    command += [word for lock in LOCKS for word in ("--requirement", str(lock))]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        return verdict(orjson.loads(ran.stdout))
    except orjson.JSONDecodeError:
        last = ran.stderr.strip().splitlines()[-1:] or ["pip-audit said nothing"]
        return UNKNOWN, [*last, "Not audited: the source of advisories does not answer. Run it where it does."]


def main() -> int:
    code, lines = audit(*sys.argv[1:])
    sys.stdout.write("\n".join(lines) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
