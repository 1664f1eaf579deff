"""The committed dashboards: what the code writes, what the SDK reads, what Grafana's linter demands, what leads where."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.grafana.files import FOLDER, as_json, written
from tests.grafana.lint import RULES, Fault, exclusions, lint, panels, parse, selectors

Board = dict[str, Any]
BOARDS: dict[str, Board] = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in FOLDER.glob("*.json")}
EXCLUDED = exclusions(FOLDER / ".lint")
ROOT = FOLDER.parents[2]
PROVISIONING = FOLDER.with_name("provisioning")
each_board = pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)


def test_what_is_committed_is_what_the_code_writes() -> None:
    assert {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")} == written()


def through_the_sdk(board: Board) -> Board:
    register_default_plugins()
    return as_json(Dashboard.from_json(copy.deepcopy(board)))


@each_board
def test_the_sdk_reads_every_field_of_it(board: Board) -> None:
    assert through_the_sdk(board) == board


def test_the_sdk_would_not_read_a_field_that_grafana_does_not_know() -> None:
    board = copy.deepcopy(BOARDS["compaction-fleet"])
    panels(board)[0]["titel"] = "a slip"
    assert through_the_sdk(board) != board


def test_links_and_bookmarks_of_others_stay_valid() -> None:
    assert {name: (board["uid"], board["tags"]) for name, board in BOARDS.items()} == {
        name: (name, ["compaction-monitor"]) for name in ("compaction-agent", "compaction-fleet", "compaction-worker")
    }


@each_board
def test_panels_have_numbers_of_their_own_and_do_not_overlap(board: Board) -> None:
    numbers = [panel["id"] for panel in board["panels"]]
    assert numbers == sorted(set(numbers))
    places = [panel["gridPos"] for panel in board["panels"]]
    cells = [(x, y) for at in places for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])]
    assert len(cells) == len(set(cells))
    assert all(x < 24 for x, _ in cells)


@each_board
def test_grafanas_linter_has_nothing_to_say(board: Board) -> None:
    allowed = {(one.rule, one.panel) for one in EXCLUDED}
    assert [fault for fault in lint(board) if (fault.rule, fault.panel) not in allowed] == []


def test_what_is_excluded_is_needed_and_has_a_reason() -> None:
    faults = {(fault.rule, fault.panel) for board in BOARDS.values() for fault in lint(board)}
    assert {(one.rule, one.panel) for one in EXCLUDED} == faults
    assert all(one.reason for one in EXCLUDED)


def _variable(board: Board, name: str) -> Board:
    found: Board = next(one for one in board["templating"]["list"] if one["name"] == name)
    return found


def _ask(query: str) -> Callable[[Board], Any]:
    return lambda board: panels(board)[1]["targets"][0].update(expr=query)


OURS = 'job=~"$job",instance=~"$instance"'
SPOILED: dict[str, Callable[[Board], Any]] = {
    "template-datasource-rule": lambda board: _variable(board, "datasource").update(label="Prometheus"),
    "template-job-rule": lambda board: _variable(board, "job").update(multi=False),
    "template-instance-rule": lambda board: _variable(board, "instance").update(allValue=".*"),
    "template-label-promql-rule": lambda board: _variable(board, "job").update(query="label_values(up{, job)"),
    "template-on-time-change-reload-rule": lambda board: _variable(board, "job").update(refresh=1),
    "panel-datasource-rule": lambda board: panels(board)[1].update(datasource={"uid": "prometheus"}),
    "panel-title-description-rule": lambda board: panels(board)[1].pop("description"),
    "panel-units-rule": lambda board: panels(board)[1]["fieldConfig"]["defaults"].update(unit="furlong"),
    "panel-no-targets-rule": lambda board: panels(board)[1].update(targets=[]),
    "target-promql-rule": _ask("sum(rate("),
    "target-rate-interval-rule": _ask(f"sum(rate(a_total{{{OURS}}}[5m]))"),
    "target-job-rule": _ask('sum(a{job="monitor",instance=~"$instance"})'),
    "target-instance-rule": _ask('sum(a{job=~"$job"})'),
    "target-counter-agg-rule": _ask(f"sum(a_total{{{OURS}}})"),
    "uneditable-dashboard-rule": lambda board: board.update(editable=True),
}


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_finds_what_it_is_about(rule: str) -> None:
    board = copy.deepcopy(BOARDS["compaction-worker"])
    before = lint(board)
    SPOILED[rule](board)
    found = [fault for fault in lint(board) if fault not in before]
    assert [fault.rule for fault in found] == [rule], found


@each_board
def test_a_cosine_is_shown_beside_the_spans_or_not_at_all(board: Board) -> None:
    for panel in panels(board):
        asked = " ".join(target["expr"] for target in panel["targets"])
        assert ("cosine" in asked) <= ("compaction_round_spans_ratio" in asked), panel["title"]


def test_the_cosine_is_shown() -> None:
    assert sum("round_cosine" in json.dumps(board) for board in BOARDS.values()) == 2


@each_board
def test_the_other_dashboards_and_the_runbooks_are_one_click_away(board: Board) -> None:
    others, runbooks = board["links"]
    assert (others["type"], others["tags"], others["includeVars"], others["keepTime"]) == (
        "dashboards",
        board["tags"],
        True,
        True,
    )
    assert (runbooks["type"], runbooks["url"]) == ("link", "${runbooks}")
    assert _variable(board, "runbooks")["current"]["value"] == "docs/runbook"


def test_what_a_cell_leads_to_is_there() -> None:
    links = [url for board in BOARDS.values() for url in re.findall(r'"url": "(.+?)"', json.dumps(board))]
    dashboards = {found[1] for url in links if (found := re.match(r"/d/([\w-]+)\?", url))}
    assert dashboards == {"compaction-agent"}
    assert dashboards <= BOARDS.keys()
    assert "${runbooks}/${__data.fields.alertname}.md" in links


def test_each_worker_leads_to_its_own_page() -> None:
    """A curve by its label; a row, whose cells have none, by its column."""
    links: dict[str, list[tuple[str, str]]] = {"timeseries": [], "table": []}
    for panel in panels(BOARDS["compaction-worker"]):
        asked = {target["refId"]: target for target in panel["targets"]}
        by_worker = [ref for ref, target in asked.items() if target["legendFormat"] == "{{instance}}"]
        if panel["title"] != "Workers" and not by_worker:
            continue
        found = [
            (override["matcher"]["options"], link["url"])
            for override in panel["fieldConfig"]["overrides"]
            for each in override["properties"]
            if each["id"] == "links"
            for link in each["value"]
        ]
        if panel["type"] == "table":
            assert found == [("instance", "http://${__data.fields.instance}/ready")]
        else:
            assert found == [(ref, "http://${__field.labels.instance}/ready") for ref in by_worker]
        links[panel["type"]] += found
    assert (len(links["timeseries"]), len(links["table"])) == (8, 1)


@each_board
def test_findings_are_marked_over_every_panel(board: Board) -> None:
    marks = {one["name"]: (one["enable"], one["iconColor"]) for one in board["annotations"]["list"]}
    own = board["uid"] == "compaction-worker"
    assert marks == {"critical findings": (not own, "red"), "warning findings": (False, "orange")}
    for one in board["annotations"]["list"]:
        assert {found.name for found, _ in selectors(parse(one["expr"]))} == {"compaction_findings_total"}
        assert one["datasource"]["uid"] == "${datasource}"


def test_provisioning_finds_the_dashboards_and_exemplars_lead_somewhere() -> None:
    providers = yaml.safe_load((PROVISIONING / "dashboards" / "compaction-monitor.yaml").read_text(encoding="utf-8"))
    (path,) = (one["options"]["path"] for one in providers["providers"])
    mounted = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]["grafana"]["volumes"]
    assert f"./{FOLDER.relative_to(ROOT).as_posix()}:{path}:ro" in mounted
    sources = yaml.safe_load((PROVISIONING / "datasources" / "compaction-monitor.yaml").read_text(encoding="utf-8"))
    source = sources["datasources"][0]
    assert (source["type"], source["isDefault"]) == ("prometheus", True)
    destination = source["jsonData"]["exemplarTraceIdDestinations"][0]
    assert destination["name"] == "session"
    # Two dollars: with one, provisioning would put a variable of the environment there.
    assert "$${__value.raw}" in destination["url"]


def test_faults_are_told_whole() -> None:
    board = copy.deepcopy(BOARDS["compaction-fleet"])
    board["editable"] = True
    assert Fault("uneditable-dashboard-rule", "", "is editable: what is changed by hand is lost") in lint(board)
