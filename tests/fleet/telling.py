"""What a run has to show: each panel with its query and value, each rule and whether it fired, each finding's alert."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode
from urllib.request import urlopen

from compaction_events.findings import Alert
from compaction_monitor.alertmanager import SOURCE
from tests.e2e.alertmanagers import Receiver
from tests.fleet.services import ROOT

TOLD: Final = "/api/v2/alerts"
BRIEF_S: Final = 5.0
# Whom a rule's alert goes to, by its severity; all others to the team.
RECEIVERS: Final = {"critical": "page", "none": "heartbeat"}
Identity = tuple[str, str, str, str]


class Published(NamedTuple):
    """An alert's publication, and when its record was written (seconds since 1970)."""

    alert: Alert
    written_at: float


class Told(NamedTuple):
    """A finding, and the alert that it became.

    Attributes:
        severities: Those it was told as firing with, in order.
        over: It is resolved. `brief`: it was within moments, as when a backlog is read, and need not have been told at all.
        fingerprint: Alertmanager's own, of the last of them.
        receivers: Who was notified.
    """

    check: str
    session_id: str
    severities: tuple[str, ...]
    over: bool
    brief: bool
    fingerprint: str
    receivers: tuple[str, ...]

    @property
    def told(self) -> bool:
        """Whether Alertmanager had it."""
        return bool(self.severities and self.fingerprint)

    def __str__(self) -> str:
        about = f"{self.check} of {self.session_id}"
        if not self.told:
            return f"{about}: {'over at once, not told' if self.brief else 'never told'}"
        how = f"{' then '.join(self.severities)}, {'resolved' if self.over else 'open'}"
        return f"{about}: alert {self.fingerprint} ({how}), notified: {', '.join(self.receivers) or 'nobody yet'}"


class Panel(NamedTuple):
    """A query of a dashboard's panel, and what it gave."""

    dashboard: str
    title: str
    query: str
    values: Mapping[str, float]

    def __str__(self) -> str:
        shown = ", ".join(f"{name} {value:.4g}" for name, value in self.values.items()) or "no data"
        return f"{self.dashboard} / {self.title}\n    {self.query}\n    {shown}"


class Rule(NamedTuple):
    """An alerting rule, whether it fired, and who was notified; `must` None: this run says nothing about it."""

    name: str
    severity: str
    must: bool | None
    fired: bool
    receivers: tuple[str, ...]

    @property
    def right(self) -> bool:
        """Whether it did as it must, and told whom it must."""
        if self.must is None:
            return True
        wanted = (RECEIVERS.get(self.severity, "team"),)
        return self.fired == self.must and self.receivers == (wanted if self.fired else ())

    def __str__(self) -> str:
        must = {True: "must", False: "must not", None: "may"}[self.must]
        did = f"fired, notified: {', '.join(self.receivers) or 'nobody yet'}" if self.fired else "did not fire"
        return f"{self.name} ({self.severity}): {must} fire, {did}{'' if self.right else '   <-- wrong'}"


def identity(labels: Mapping[str, str]) -> Identity:
    """What makes a finding's alert the same for Alertmanager."""
    return labels["alertname"], labels["severity"], labels["agent"], labels["session_id"]


def became(published: Sequence[Published], heard: Receiver, seen: Mapping[Identity, str]) -> list[Told]:
    """Each alert of the log, and what became of it.

    Args:
        heard: What the bridge has sent, and whom Alertmanager has notified.
        seen: Fingerprints of the alerts that Alertmanager was seen to have.
    """
    fired: dict[str, list[str]] = {}
    for path, alerts in list(heard.heard):
        for alert in alerts if path == TOLD else ():
            severities = fired.setdefault(alert["annotations"]["finding_id"], [])
            if "resolved_because" not in alert["annotations"] and alert["labels"]["severity"] not in severities:
                severities.append(alert["labels"]["severity"])
    receivers = _receivers(heard)
    episodes: dict[str, list[Published]] = {}
    for one in published:
        episodes.setdefault(one.alert.id, []).append(one)
    return [_became(episode, tuple(fired.get(name, ())), seen, receivers) for name, episode in episodes.items()]


def _became(
    episode: Sequence[Published], fired: tuple[str, ...], prints: Mapping[Identity, str], receivers: Mapping[Identity, set[str]]
) -> Told:
    last = episode[-1].alert
    over = last.status == "resolved"
    brief = over and episode[-1].written_at - episode[0].written_at < BRIEF_S
    known = (last.name, fired[-1] if fired else "", last.agent, last.session_id)
    heard = tuple(sorted(receivers.get(known, ())))
    return Told(last.name, last.session_id, fired, over, brief, prints.get(known, ""), heard)


def _receivers(heard: Receiver) -> dict[Identity, set[str]]:
    """Who was notified of which finding."""
    found: dict[Identity, set[str]] = {}
    for path, body in list(heard.heard):
        for alert in () if path == TOLD else body["alerts"]:
            if alert["labels"].get("source") == SOURCE:
                found.setdefault(identity(alert["labels"]), set()).add(body["receiver"])
    return found


def rules(prometheus: str, seconds: float, must: Mapping[str, bool], heard: Receiver) -> list[Rule]:
    """Every alerting rule that Prometheus has loaded."""
    query = f'max by (alertname) (max_over_time(ALERTS{{alertstate="firing"}}[{round(seconds)}s]))'
    fired = {result["metric"]["alertname"] for result in ask(prometheus, "query", query=query)["result"]}
    notified: dict[str, set[str]] = {}
    for path, body in list(heard.heard):
        for alert in () if path == TOLD else body["alerts"]:
            notified.setdefault(alert["labels"]["alertname"], set()).add(body["receiver"])
    return [
        Rule(name, rule["labels"]["severity"], must.get(name), name in fired, tuple(sorted(notified.get(name, ()))))
        for group in ask(prometheus, "rules", type="alert")["groups"]
        for rule in group["rules"]
        for name in [rule["name"]]
    ]


def panels(prometheus: str, minutes: float, out: Path) -> list[Panel]:
    """Every panel's queries, by the tool that draws the dashboards; the pictures are in `out`."""
    command = [sys.executable, "-m", "deploy.grafana.preview", "--prometheus", prometheus, "--minutes", f"{minutes:g}"]
    asked = subprocess.run([*command, "--json", "--out", str(out)], cwd=ROOT, capture_output=True, text=True, check=False)
    if asked.returncode not in (0, 1):
        raise RuntimeError(asked.stderr)
    found = [json.loads(line) for line in asked.stdout.splitlines()]
    return [Panel(one["dashboard"], one["panel"], one["query"], one["values"]) for one in found]


def ask(prometheus: str, path: str, **query: str) -> Any:
    """The data of an answer of Prometheus' API."""
    with urlopen(f"{prometheus}/api/v1/{path}?{urlencode(query)}", timeout=30) as answer:
        return json.load(answer)["data"]
