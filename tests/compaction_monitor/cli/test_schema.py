"""`schema`: the contract as files."""

from __future__ import annotations

from pathlib import Path

import yaml

from compaction_events.asyncapi import document
from compaction_events.schema import schemas
from compaction_monitor.cli.exits import Code
from tests.compaction_monitor.cli.conftest import Run


def test_the_whole_document(run: Run, tmp_path: Path) -> None:
    ran = run("schema", "export", "out/schemas", "--json")
    assert (ran.code, ran.err) == (0, "")
    assert ran.document == {"files": [f"out/schemas/{name}" for name in schemas()]}
    assert {path.name for path in (tmp_path / "out" / "schemas").iterdir()} == set(schemas())


def test_people_get_one_path_a_line(run: Run) -> None:
    assert run("schema", "export", "out").out.splitlines() == [f"out/{name}" for name in schemas()]


def test_a_folder_that_cannot_be_made(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ran = run("schema", "export", "file/schemas")
    assert (ran.code, ran.out) == (Code.failed, "")
    assert "Cannot write the schemas to file/schemas" in ran.err
    assert "next: Give a folder you can write to." in ran.err


PUBLISHED = Path(__file__).parents[3] / "schemas" / "asyncapi.yaml"


class TestAsyncApi:
    def test_the_published_document_is_not_stale(self, run: Run) -> None:
        ran = run("schema", "asyncapi")
        assert (ran.code, ran.err) == (0, "")
        stale = "run `compaction-monitor schema asyncapi > schemas/asyncapi.yaml`"
        assert ran.out == PUBLISHED.read_text(encoding="utf-8"), stale

    def test_as_yaml_and_as_json_it_is_the_same(self, run: Run) -> None:
        assert run("schema", "asyncapi", "--json").document == yaml.safe_load(run("schema", "asyncapi").out) == document()
