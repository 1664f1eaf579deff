"""What the image is made of: locked by hashes, listed in a bill of materials, and looked up among known vulnerabilities."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

import orjson
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from deploy import audit

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
RUN, BUILD = ROOT / "requirements.lock", ROOT / "requirements-build.lock"
WANTED = {
    RUN: [*PROJECT["project"]["dependencies"], *EXTRAS["monitor"]],
    BUILD: PROJECT["build-system"]["requires"],
}
needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
each_lock = pytest.mark.parametrize("lock", WANTED, ids=lambda lock: lock.name)


def pinned(lock: Path) -> Iterator[tuple[Requirement, list[str]]]:
    """Each requirement of a lock with its hashes."""
    whole = re.sub(
        r"\\\n\s*", "", "\n".join(line for line in lock.read_text().splitlines() if not line.lstrip().startswith("#"))
    )
    for line in filter(None, whole.splitlines()):
        name, *hashes = line.split("--hash=")
        yield Requirement(name), [one.strip() for one in hashes]


def versions(lock: Path) -> dict[str, Version]:
    found: dict[str, Version] = {}
    for requirement, _ in pinned(lock):
        (exactly,) = requirement.specifier
        assert exactly.operator == "=="
        found[canonicalize_name(requirement.name)] = Version(exactly.version)
    return found


@each_lock
def test_every_package_is_pinned_to_one_version_by_its_hashes(lock: Path) -> None:
    assert versions(lock)
    for requirement, hashes in pinned(lock):
        assert hashes, requirement
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", one) for one in hashes)


@each_lock
def test_it_names_no_index_and_no_file(lock: Path) -> None:
    assert re.findall(r"://|--(?:extra-)?index-url|--find-links|@ ?file|(?<![\w.])/\w", lock.read_text()) == []


@each_lock
def test_it_fits_what_the_project_asks_for(lock: Path) -> None:
    locked = versions(lock)
    for text in WANTED[lock]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(locked[canonicalize_name(requirement.name)]), text


@each_lock
def test_nothing_that_a_package_needs_is_missing(lock: Path) -> None:
    """As far as the packages are installed here."""
    locked = versions(lock)
    extras: dict[str, set[str]] = {canonicalize_name(r.name): r.extras for r in map(Requirement, WANTED[lock])}
    known = 0
    for name in locked:
        try:
            needed = requires(name) or []
        except PackageNotFoundError:
            continue
        known += 1
        for requirement in map(Requirement, needed):
            wanted = [
                requirement.marker is None or requirement.marker.evaluate({"extra": e}) for e in ("", *extras.get(name, ()))
            ]
            assert not any(wanted) or canonicalize_name(requirement.name) in locked, f"{name} needs {requirement}"
    assert known > len(locked) / 2


def test_a_lock_that_does_not_fit_would_be_seen(tmp_path: Path) -> None:
    old = tmp_path / "requirements.lock"
    old.write_text(re.sub(r"^faust-streaming==\S+", "faust-streaming==0.11.3", RUN.read_text(), flags=re.MULTILINE))
    assert not Requirement(next(text for text in WANTED[RUN] if text.startswith("faust"))).specifier.contains(
        versions(old)["faust-streaming"]
    )


def test_the_image_installs_nothing_but_what_is_locked() -> None:
    whole = re.sub(r"\\\n\s*", "", (ROOT / "deploy" / "Dockerfile").read_text())
    installs = re.findall(r"pip (?:install|wheel) [^&\n]*", whole)
    assert len(installs) == 4
    for command in installs:
        assert "--require-hashes" in command or "--no-deps" in command, command
    (made,) = [command for command in installs if "pip wheel" in command]
    assert "--no-build-isolation" in made, "else pip fetches the build's own packages, unlocked"


def recipe(target: str, word: str) -> str:
    """The line of a target of make with this word, with the tools of this environment."""
    # Not with what the make that may have started us was given (ARGS=…).
    env = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKEOVERRIDES", "ARGS")}
    shown = subprocess.run(["make", "--dry-run", target], cwd=ROOT, env=env, capture_output=True, text=True, check=True).stdout
    (line,) = [line for line in re.sub(r"\\\n\s*", "", shown).splitlines() if word in line]
    return re.sub(r"\S*bin/(python|uv)\b", lambda tool: shlex.quote(str(Path(sys.executable).with_name(tool[1]))), line)


@needs_make
def test_the_bill_of_materials_is_the_lock(tmp_path: Path) -> None:
    written = tmp_path / "sbom.json"
    command = recipe("sbom", "cyclonedx").replace("dist/sbom.json", shlex.quote(str(written)))
    subprocess.run(["sh", "-c", command], cwd=ROOT, check=True)
    bill: dict[str, Any] = orjson.loads(written.read_bytes())
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", PROJECT["project"]["name"])
    listed = {canonicalize_name(one["name"]): one for one in bill["components"]}
    assert {name: Version(one["version"]) for name, one in listed.items()} == versions(RUN)
    for requirement, hashes in pinned(RUN):
        component = listed[canonicalize_name(requirement.name)]
        known = [
            f"sha256:{one['content']}" for reference in component["externalReferences"] for one in reference.get("hashes", ())
        ]
        assert sorted(known) == sorted(hashes), requirement
    subprocess.run(["sh", "-c", command], cwd=ROOT, check=True)
    assert orjson.loads(written.read_bytes()) == bill, "the same lock is the same bill"


@pytest.mark.index
@needs_make
@each_lock
def test_locking_again_changes_nothing(lock: Path, tmp_path: Path) -> None:
    again = tmp_path / lock.name
    shutil.copy(lock, again)
    option = f"--output-file {lock.name}"
    subprocess.run(["sh", "-c", recipe("lock", option).replace(option, f"--output-file {again}")], cwd=ROOT, check=True)
    assert again.read_text() == lock.read_text()


def package(name: str, *flaws: str, skipped: str | None = None) -> dict[str, Any]:
    if skipped:
        return {"name": name, "skip_reason": skipped}
    return {"name": name, "version": "1.0", "vulns": [{"id": flaw, "fix_versions": ["1.1"]} for flaw in flaws]}


@pytest.mark.parametrize(
    ("packages", "code", "lines"),
    [
        ([package("a"), package("b")], 0, ["No known vulnerability; 2 of 2 packages looked up."]),
        (
            [package("a", "CVE-1"), package("b", skipped="not found")],
            1,
            ["a 1.0: CVE-1, fixed in 1.1", "1 known vulnerabilities; 1 of 2 packages looked up."],
        ),
        (
            [package("a"), package("b", skipped="b is not known there")],
            69,
            ["b is not known there", "Not audited: 1 of 2 packages looked up. Run it where the source of advisories answers."],
        ),
        (
            [],
            69,
            [
                "no package at all in the report",
                "Not audited: 0 of 0 packages looked up. Run it where the source of advisories answers.",
            ],
        ),
    ],
)
def test_an_audit_that_could_not_ask_is_no_clean_bill(packages: list[Any], code: int, lines: list[str]) -> None:
    assert audit.verdict({"dependencies": packages}) == (code, lines)


def test_a_source_that_does_not_answer_is_said() -> None:
    code, lines = audit.audit("--vulnerability-service", "osv", "--osv-url", "http://127.0.0.1:1/")
    assert code == audit.UNKNOWN
    assert lines[-1] == "Not audited: the source of advisories does not answer. Run it where it does."


@pytest.mark.index
def test_what_is_locked_has_no_known_vulnerability() -> None:
    code, lines = audit.audit()
    if code == audit.UNKNOWN:
        pytest.skip(lines[-1])
    assert code == audit.CLEAN, "\n".join(lines)
