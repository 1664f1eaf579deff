"""deploy/Dockerfile: linted, pinned, and its steps run on this machine, in a folder in place of the image's root."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.natively import ROOT, program
from tests.test_compose import PINNED, SERVICES

# Half a minute of work, most of it pip's; a machine that does much else takes many times as long.
pytestmark = pytest.mark.timeout(900)

DOCKERFILE = ROOT / "deploy" / "Dockerfile"
IGNORE = ROOT / ".dockerignore"
# The folders of the image that its steps write to.
OWN = re.compile(r"(?<![\w.-])(/opt/venv|/src|/(?:var/lib|run)/compaction-monitor)\b")


def instructions() -> list[tuple[str, str]]:
    """(instruction, what follows it), in order; lines that go on are one."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if line and not line.lstrip().startswith("#")]
    whole = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in whole.splitlines())]


def of(instruction: str) -> list[str]:
    return [rest for word, rest in instructions() if word == instruction]


def hadolint(file: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program("hadolint"), str(file)], capture_output=True, text=True, check=False)


def test_hadolint_finds_nothing() -> None:
    linted = hadolint(DOCKERFILE)
    assert (linted.returncode, linted.stdout, linted.stderr) == (0, "", "")


def test_hadolint_would_say_what_is_wrong(tmp_path: Path) -> None:
    wrong = tmp_path / "Dockerfile"
    wrong.write_text(DOCKERFILE.read_text().replace(of("FROM")[-1], "python:latest"))
    assert "DL3007" in hadolint(wrong).stdout


def test_the_image_is_pinned_built_in_stages_and_not_run_as_root() -> None:
    bases = [rest.split()[0] for rest in of("FROM")]
    assert len(bases) == 2
    assert all(PINNED.match(base) for base in bases)
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", of("USER")[-1])


def test_the_image_is_built_from_what_the_ignore_file_lets_in() -> None:
    let_in = {line[1:] for line in IGNORE.read_text().splitlines() if line.startswith("!")}
    copied = {name for rest in of("COPY") if "--from" not in rest for name in rest.split()[:-1]}
    assert copied == let_in
    assert all((ROOT / name).exists() for name in copied)


@dataclass
class Image:
    """What the steps of the Dockerfile leave, below `root`."""

    root: Path
    workdir: Path = Path("/")
    env: dict[str, str] = field(default_factory=dict)

    def inside(self, text: str) -> str:
        """A command or path of the image, as it is called below `root`."""
        return OWN.sub(lambda found: f"{self.root}{found[0]}", text)

    def build(self) -> None:
        for word, rest in instructions():
            if word == "FROM":
                self.workdir = self.root
            elif word == "WORKDIR":
                self.workdir = Path(self.inside(rest))
                self.workdir.mkdir(parents=True, exist_ok=True)
            elif word == "COPY":
                self._copy(rest)
            elif word == "RUN":
                self._run(rest)
            elif word == "ENV":
                pairs = dict(pair.split("=", 1) for pair in shlex.split(self.inside(rest)))
                self.env |= {name: value.replace("$PATH", os.environ["PATH"]) for name, value in pairs.items()}

    def _copy(self, rest: str) -> None:
        # Between stages nothing moves here: both are below the one root, and a virtual environment knows its own path.
        if rest.startswith("--from"):
            return
        *names, to = rest.split()
        for name in names:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, self.workdir / to, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, self.workdir / to)

    def _run(self, rest: str) -> None:
        command = self.inside(rest)
        # The image's users are kept below the root.
        command = command.replace("python -m venv", f"{shlex.quote(python())} -m venv")
        # A layer of an image keeps no cache; this machine has one, and does not download everything each time.
        command = command.replace(" --no-cache-dir", "")
        command = re.sub(r"\b((?:user|group)add) ", rf"\1 --prefix {self.root} ", command)
        ran = subprocess.run(["sh", "-ec", command], cwd=self.workdir, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, f"{command}\n{ran.stdout}{ran.stderr}"

    def run(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """The entry point, with the variables of the image and these, and with no other of ours."""
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("COMPACTION_", "PYTHON"))}
        (entry,) = _words(of("ENTRYPOINT")[-1])
        found = shutil.which(entry, path=self.env["PATH"])
        assert found is not None
        command = [found, *arguments]
        environment = {**ours, **self.env, **env}
        return subprocess.run(command, cwd=self.root, env=environment, capture_output=True, text=True, check=False, timeout=120)


def python() -> str:
    """The image's Python if it is here, as on its path or pyenv's, else this one."""
    (release,) = {found[1] for base in of("FROM") if (found := re.match(r"python:(3\.\d+)", base))}
    here = [f"python{release}", *map(str, Path.home().glob(f".pyenv/versions/{release}.*/bin/python"))]
    for candidate in here:
        with suppress(OSError):
            shown = subprocess.run([candidate, "--version"], capture_output=True, text=True, check=False)
            if shown.stdout.startswith(f"Python {release}."):
                return candidate
    return sys.executable


def _words(form: str) -> list[str]:
    """The exec form: a list, not a shell's text, so that signals reach the program."""
    return re.findall(r'"([^"]*)"', form)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    if sys.platform != "linux" or os.geteuid() != 0:
        # As any user the image's user cannot be made; CI is root.
        assert "CI" not in os.environ
        pytest.skip("the steps make a user: they are run by root, on Linux")
    root = tmp_path_factory.mktemp("image")
    for name in ("passwd", "group", "shadow", "gshadow"):
        (root / "etc").mkdir(exist_ok=True)
        (root / "etc" / name).touch()
    built = Image(root)
    built.build()
    return built


@pytest.mark.index
def test_its_steps_run_and_leave_a_program(image: Image) -> None:
    assert Path(image.inside(of("WORKDIR")[-1])).is_dir()
    shown = image.run("--version")
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", shown.stdout), shown.stderr
    missing = image.run("simulate", "inversion")
    assert missing.returncode != 0, "no more is installed than what a worker needs"


@pytest.mark.index
def test_its_command_is_the_worker(image: Image, tmp_path: Path) -> None:
    (command,) = of("CMD")
    own = {"COMPACTION_MONITOR_BROKERS": "127.0.0.1:9", "COMPACTION_MONITOR_DATADIR": str(tmp_path)}
    ended = image.run(*_words(command), **own, COMPACTION_MONITOR_WEB_PORT="0")
    assert ended.returncode == 69, ended.stderr
    assert "no broker answers at 127.0.0.1:9" in ended.stderr


@pytest.mark.index
def test_its_folders_belong_to_its_user(image: Image) -> None:
    """A new volume takes over whose its folder is; what is in it others may read."""
    user, group = map(int, of("USER")[-1].split(":"))
    mounted = {volume["target"] for volume in SERVICES["web-token"]["volumes"]} | set(of("VOLUME"))
    for path in mounted:
        folder = Path(image.inside(path)).stat()
        assert (folder.st_uid, folder.st_gid, stat.S_IMODE(folder.st_mode)) == (user, group, 0o755)
    assert f"monitor:x:{user}:{group}:" in (image.root / "etc" / "passwd").read_text()
    assert f"monitor:x:{group}:" in (image.root / "etc" / "group").read_text()
