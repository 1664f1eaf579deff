"""Node's part of the tests: packages by npm, pinned by a package.json here, installed once outside the checkout."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from tests.absent import skip_or_fail
from tests.e2e.brokers import cache_dir


def _installed(package: Path) -> Path:
    """The folder that holds `node_modules` of a package.json."""
    manifest = package.read_bytes()
    folder = cache_dir() / f"node-{hashlib.sha256(manifest).hexdigest()[:16]}"
    if folder.is_dir():
        return folder
    npm = shutil.which("npm")
    if npm is None:
        skip_or_fail("There is no npm to install Node packages with")
    partial = folder.with_name(f"{folder.name}.{os.getpid()}")
    partial.mkdir(parents=True)
    (partial / "package.json").write_bytes(manifest)
    # No scripts: none of these packages needs one to work.
    command = [str(npm), "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error"]
    done = subprocess.run(command, cwd=partial, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        shutil.rmtree(partial)
        skip_or_fail(f"npm could not install {package.parent.name}'s packages: {done.stderr[-500:]}")
    try:
        # Moved there whole at the end: an installation that was cut off leaves no half of it.
        partial.rename(folder)
    except OSError:
        shutil.rmtree(partial)  # another test run was faster
    return folder


def prepared(source: Path, folder: Path) -> Path:
    """A folder to run scripts of `source` in: a copy of them beside the packages of their package.json."""
    if shutil.which("node") is None:
        skip_or_fail("There is no Node (node) to run with")
    packages = _installed(source / "package.json")
    place = folder / source.name
    shutil.copytree(source, place, ignore=shutil.ignore_patterns("node_modules"))
    (place / "node_modules").symlink_to(packages / "node_modules", target_is_directory=True)
    return place


def run(place: Path, *arguments: str, timeout_s: float = 60) -> str:
    """What a script in `place` prints.

    Raises:
        AssertionError: It failed.
    """
    done = subprocess.run(
        ["node", *arguments], cwd=place, capture_output=True, text=True, check=False, timeout=timeout_s, encoding="utf-8"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
