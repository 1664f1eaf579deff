"""The house: what the wheel holds, what the base install loads, who may import whom."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "compaction_events": ROOT / "schemas" / "compaction_events",
    "compaction_monitor": ROOT / "stream" / "compaction_monitor",
}
# What the base install must not need.
EXTRAS = {
    "aiokafka",
    "faust",
    "jinja2",
    "markupsafe",
    "mode",
    "numpy",
    "opentelemetry",
    "prometheus_client",
    "pydantic_settings",
    "rich",
    "rocksdict",
    "sklearn",
    "typer",
    "uvloop",
    "yaml",
}

CLIENTS = {f"compaction_events.{name}" for name in ("consumer", "controller", "delivery", "emitter", "security")}
# Of the extra [otel], in an agent; the worker's does without.
TRACING = "compaction_events.tracing"
# Everything between Kafka and the pure middle.
SHELL = "compaction_monitor.shell"
FAUST = {
    f"{SHELL}.{name}"
    for name in (
        "app",
        "fetching",
        "lanes",
        "ownership",
        "settling",
        "store",
        "tables",
        "transactions",
        "transport",
        "undecodable",
        "worker",
    )
}
# Everything that is not in here is pure. A new module that touches the world has to be added on purpose.
OUTSIDE = {
    SHELL,
    *(f"compaction_monitor.{name}" for name in ("__main__", "cli", "example_agent", "report.charts", "report.page")),
}
# Part of the base install, in the agent's own process: it has a clock and a lock, and nothing else of the world.
IN_PROCESS = {"compaction_monitor.guard.guard"}
# The reference agents of the extra [simulate]: pure, and no part of the base install.
SIMULATE = "compaction_monitor.simulate"
ARRAYS = {
    f"{SIMULATE}.{name}"
    for name in ("compaction", "hierarchy", "keeper", "material", "memory", "notes", "rehydration", "researcher")
}
MAY_IMPORT = {
    "faust": FAUST,
    "mode": FAUST,
    "rocksdict": {"compaction_monitor.shell.store"},
    "aiokafka": FAUST | CLIENTS | {f"{SHELL}.{name}" for name in ("client", "letters", "topics")},
    "prometheus_client": {"compaction_monitor.shell.metrics"},
    "numpy": ARRAYS,
    "opentelemetry": {TRACING, f"{SHELL}.tracing"},
}
# A clock, the environment, logs, the network, chance: a pure function has none of them.
IMPURE = {"asyncio", "logging", "os", "random", "secrets", "socket", "subprocess", "threading", "time"}
CLOCKS = {"now", "utcnow", "today"}


def modules() -> Iterator[tuple[str, Path]]:
    """Every module of both packages, as (dotted name, path)."""
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            yield ".".join((package, *(part for part in parts if part != "__init__"))), path


def is_outside(name: str) -> bool:
    """Whether a module, or the package it is in, is named above."""
    return any(f"{name}.".startswith(f"{outside}.") for outside in OUTSIDE)


def is_pure(name: str) -> bool:
    return name.startswith("compaction_monitor") and not is_outside(name) and name not in IN_PROCESS


each_module = pytest.mark.parametrize(("name", "path"), [pytest.param(*module, id=module[0]) for module in modules()])
each_pure_module = pytest.mark.parametrize("path", [pytest.param(path, id=name) for name, path in modules() if is_pure(name)])


def imports(tree: ast.Module) -> set[str]:
    """The full names a module imports, anywhere in it; `if TYPE_CHECKING` counts, a type is a dependency too."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@each_module
def test_imports_keep_to_the_table(name: str, path: Path) -> None:
    roots = {imported.split(".")[0] for imported in imports(ast.parse(path.read_text()))}
    for library, allowed in MAY_IMPORT.items():
        assert library not in roots or name in allowed, f"{name} imports {library}"
    if name.startswith("compaction_events"):
        assert "compaction_monitor" not in roots


def test_no_module_needs_itself() -> None:
    """Not even for its types: two modules in a circle are one."""
    paths = dict(modules())
    needs = {}
    for name, path in paths.items():
        found = imports(ast.parse(path.read_text())) & paths.keys()
        # `from package import module` needs the module, not what the package re-exports.
        needs[name] = {one for one in found if not any(other.startswith(f"{one}.") for other in found)}
    assert set(TopologicalSorter(needs).static_order()) == paths.keys()


@each_pure_module
def test_what_is_not_the_shell_is_pure(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert not imports(tree) & IMPURE
    assert not any(map(is_outside, imports(tree))), "the pure middle knows nothing of what is around it"
    calls = {node.func.attr for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)}
    assert not calls & CLOCKS, "time is an argument"


def run(code: str, *, cwd: Path, path: Path) -> str:
    """Run `code` in a new interpreter that finds `path` before anything else."""
    environment = {**os.environ, "PYTHONPATH": str(path)}
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as an installer lays it out: pure Python, so unpacked is installed."""
    folder = tmp_path_factory.mktemp("installed")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def test_the_wheel_holds_the_two_packages_and_nothing_else(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith("/")}
    about = {name for name in names if ".dist-info/" in name}
    of_packages = {
        path.relative_to(folder.parent).as_posix()
        for folder in PACKAGES.values()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert names - about == of_packages
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    assert {Path(name).suffix for name in of_packages} <= {".py", ".typed", ".html", ".js", ".css", ".json", ".jsonl"}
    assert {name.partition("/")[2] for name in about} == {
        "METADATA",
        "RECORD",
        "WHEEL",
        "entry_points.txt",
        "licenses/LICENSE",
    }


def test_the_base_install_needs_two_libraries(unpacked: Path) -> None:
    metadata = next(unpacked.glob("*.dist-info/METADATA")).read_text()
    required = re.findall(r"^Requires-Dist: ([\w-]+)(?!.*extra ==)", metadata, re.MULTILINE)
    assert set(required) == {"orjson", "pydantic"}


def test_the_base_install_loads_no_extra(unpacked: Path, tmp_path: Path) -> None:
    own = (".adapters", ".simulate", TRACING)
    base = [name for name, _ in modules() if not is_outside(name) and name not in CLIENTS and not any(x in name for x in own)]
    code = f"""
import importlib, sys
for name in {base!r}:
    importlib.import_module(name)
print(sys.modules["compaction_monitor"].__file__)
print(*sorted({{name.split(".")[0] for name in sys.modules}} & {EXTRAS!r}))
"""
    origin, loaded = run(code, cwd=tmp_path, path=unpacked).splitlines()
    assert Path(origin).is_relative_to(unpacked)
    assert not loaded


def test_the_embedded_broker_needs_no_extra_to_say_what_is_missing(unpacked: Path, tmp_path: Path) -> None:
    code = f"import sys, compaction_monitor.shell.embedded; print(*(sys.modules.keys() & {EXTRAS | {'pydantic'}!r}))"
    assert not run(code, cwd=tmp_path, path=unpacked).strip()


def test_an_agents_own_schemas_and_stream_stay_its_own(unpacked: Path, tmp_path: Path) -> None:
    for package in ("schemas", "stream"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("owner = 'agent'\n")
    code = """
import schemas, stream
import compaction_events, compaction_monitor
assert schemas.owner == stream.owner == "agent"
from compaction_events import codec
from compaction_monitor import effects
print(codec.__name__, effects.__name__)
"""
    assert run(code, cwd=tmp_path, path=unpacked).split() == ["compaction_events.codec", "compaction_monitor.effects"]
