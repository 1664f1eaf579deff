"""The fleet: how many sessions are in danger, on what ground they stand, what was found, what is done about it."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.grafana.panels import (
    AGENT_UID,
    DANGER,
    FLEET_UID,
    SHARE,
    Board,
    Link,
    Panel,
    Step,
    buckets,
    columns,
    events,
    lines,
    number,
)
from deploy.grafana.queries import LIVE, RANGE, Query, each_minute, increase, only, quantile, recorded, total

TO_AGENT: Final = f"/d/{AGENT_UID}?var-agent=${{__data.fields.agent}}&${{datasource:queryparam}}&${{__url_time_range}}"
INVERSION: Final = (
    "Medians over the rounds: the scorer's cosine, the source spans that can still be reached (as a share of those at "
    "session start), and the share of the set that is raw. A cosine that rises while spans fall is salience inversion; "
    "a cosine alone says nothing."
)


def board() -> Dashboard:
    """The dashboard."""
    board = Board(FLEET_UID, "Compaction: fleet", "All sessions of all agents: how many are in danger, and why.")
    board.row("Now", *_now()).row("Sessions", *_sessions()).row("Ground", *_ground()).row("Findings", *_findings())
    return board.row("Loop", *_loop()).build()


def _now() -> list[Panel]:
    danger = recorded("namespace_job:compaction_sessions_critical_per_live:ratio")
    blind = recorded("namespace_job:compaction_sessions_blind_per_live:ratio")
    delay = quantile(0.99, "compaction_detection_delay_seconds", over=RANGE)
    return [
        number("In danger", "Share of the live sessions in which a critical finding is open; the fleet's page is about this.",
               Query(danger, "in danger"), unit=SHARE, base="green", steps=DANGER),
        number("Live sessions", "Sessions that did not say they ended and were not silent for a day.",
               Query(total("compaction_sessions", state=LIVE), "live")),
        number("Critical findings open", "Of all checks, in all sessions.",
               Query(total("compaction_findings_open", severity="critical"), "open"), base="green", steps=[Step(1, "red")]),
        number("Blind", "Share of the live sessions whose last round did not say how many spans can be reached: "
               "their cosine is not shown, and no check that needs spans can run.",
               Query(blind, "blind"), unit=SHARE, base="green", steps=[Step(0.5, "orange")]),
        number("Rounds", "Rounds that were judged in the range shown.", Query(increase("compaction_rounds_total"), "rounds")),
        number("Detection delay, p99", "From the append of an event to the commit of what was found, over the range shown.",
               Query(delay, "p99"), unit="s", base="green", steps=[Step(5, "orange"), Step(30, "red")]),
    ]  # fmt: skip


def _sessions() -> list[Panel]:
    return [
        lines("Sessions by state", "By the worst of what is open in them. `blind`: nothing open, but the last round said "
              "nothing about spans; `new`: no round yet.",
              Query(total("compaction_sessions", "state"), "{{state}}"), stacked=True),
        lines("In danger, by agent", "Share of each agent's live sessions in which a critical finding is open.",
              Query(recorded("namespace_job_agent:compaction_sessions_critical_per_live:ratio"), "{{agent}}"),
              unit=SHARE, bounds=(0, 1), steps=DANGER),
        lines("Rounds, by agent", "Rounds a second, compaction and rehydration.",
              Query(recorded("namespace_job_agent:compaction_rounds:rate5m"), "{{agent}}"), unit="ops"),
    ]  # fmt: skip


def _ground() -> list[Panel]:
    return [
        lines("Cosine beside spans", INVERSION,
              Query(quantile(0.5, "compaction_round_cosine"), "cosine"),
              Query(quantile(0.5, "compaction_round_spans_ratio"), "spans"),
              Query(quantile(0.5, "compaction_round_raw_ratio"), "raw"), unit=SHARE, bounds=(0, 1)),
        buckets("Reachable spans", "How many rounds left how large a share of the source spans reachable. "
                "What sinks below a fifth is at the floor.", "compaction_round_spans_ratio", unit=SHARE),
        buckets("Depth of summaries", "The deepest summary after each round; 1 is a summary of raw text.",
                "compaction_round_depth", unit="none"),
    ]  # fmt: skip


def _findings() -> list[Panel]:
    raised = {"status": "raised"}
    return [
        lines("Open findings, by check", "Alerts that fire now.",
              Query(only(total, "compaction_findings_open", "check"), "{{check}}"), stacked=True),
        events("Raised, by severity", "Findings a minute, repeats for a worse severity or a new subject not counted.",
              Query(each_minute("compaction_findings_total", "severity", **raised), "{{severity}}")),
        events("Raised and resolved", "Findings a minute. What is raised faster than it is resolved piles up.",
              Query(each_minute("compaction_findings_total", "status"), "{{status}}")),
        columns("Agents", "One row for each agent; its name leads to its own dashboard.", "agent",
                Query(total("compaction_sessions", "agent", state=LIVE), "live sessions"),
                Query(total("compaction_sessions", "agent", state="critical"), "in danger"),
                Query(total("compaction_sessions", "agent", state="blind"), "blind"),
                Query(increase("compaction_rounds_total", "agent"), "rounds"),
                Query(increase("compaction_findings_total", "agent", **raised), "findings raised"),
                Query(increase("compaction_orders_total", "agent", status="sent"), "orders sent"),
                links=[Link("This agent", TO_AGENT)], height=6),
    ]  # fmt: skip


def _loop() -> list[Panel]:
    return [
        events("Orders sent, by action", "First sendings a minute.",
              Query(only(each_minute, "compaction_orders_total", "action", status="sent"), "{{action}}")),
        events("How orders ended", "Orders a minute. `expired` and `rejected`: nobody obeyed.",
              Query(each_minute("compaction_orders_ended_total", "outcome"), "{{outcome}}")),
        lines("Time to the first answer", "From an order's publication to its controller's first word.",
              Query(quantile(0.5, "compaction_answer_delay_seconds"), "p50"),
              Query(quantile(0.95, "compaction_answer_delay_seconds"), "p95"), unit="s"),
    ]  # fmt: skip
