"""One family of sessions: those of the agents that are chosen."""

from __future__ import annotations

from typing import Any, Final

from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.grafana.fleet import INVERSION
from deploy.grafana.panels import AGENT_UID, DANGER, SHARE, Board, Panel, Step, buckets, chosen, columns, events, lines, number
from deploy.grafana.queries import LIVE, Query, each_minute, increase, only, quantile, recorded, total

OF: Final[dict[str, Any]] = {"agent": "$agent"}


def board() -> Dashboard:
    """The dashboard."""
    agent = chosen("agent", "compaction_rounds_total", job="$job", instance="$instance")
    board = Board(AGENT_UID, "Compaction: by agent", "The sessions of the agents that are chosen.", agent)
    board.row("Now", *_now()).row("Ground", *_ground()).row("Compared", *_compared()).row("Findings", *_findings())
    return board.build()


def _now() -> list[Panel]:
    danger = recorded("namespace_job_agent:compaction_sessions_critical_per_live:ratio", **OF)
    return [
        number("In danger", "Share of each agent's live sessions in which a critical finding is open.",
               Query(danger, "{{agent}}"), unit=SHARE, base="green", steps=DANGER, width=8),
        number("Live sessions", "Sessions that did not say they ended and were not silent for a day.",
               Query(total("compaction_sessions", state=LIVE, **OF), "live")),
        number("Critical findings open", "Of all checks.",
               Query(total("compaction_findings_open", severity="critical", **OF), "open"), base="green",
               steps=[Step(1, "red")]),
        number("Blind sessions", "Their last round did not say how many spans can be reached.",
               Query(total("compaction_sessions", state="blind", **OF), "blind"), base="green", steps=[Step(1, "orange")]),
        number("Rounds", "Rounds that were judged in the range shown.",
               Query(increase("compaction_rounds_total", **OF), "rounds")),
    ]  # fmt: skip


def _ground() -> list[Panel]:
    spans, raw = "compaction_round_spans_ratio", "compaction_round_raw_ratio"
    return [
        lines("Cosine beside spans", INVERSION,
              Query(quantile(0.5, "compaction_round_cosine", **OF), "cosine"),
              Query(quantile(0.5, spans, **OF), "spans"),
              Query(quantile(0.5, raw, **OF), "raw"), unit=SHARE, bounds=(0, 1), width=12),
        lines("The worst tenth", "A tenth of the rounds left no more than this. Below 0.25 raw the set is mostly summary, "
              "below 0.2 the spans are at the floor.",
              Query(quantile(0.1, spans, **OF), "spans"), Query(quantile(0.1, raw, **OF), "raw"),
              unit=SHARE, bounds=(0, 1), width=12),
        buckets("Raw share", "How many rounds left how large a share of the set raw.", raw, unit=SHARE, **OF),
        buckets("Reachable spans", "How many rounds left how large a share of the source spans reachable.", spans,
                unit=SHARE, **OF),
        buckets("Depth of summaries", "The deepest summary after each round; 1 is a summary of raw text.",
                "compaction_round_depth", unit="none", **OF),
    ]  # fmt: skip


def _compared() -> list[Panel]:
    return [
        lines("Reachable spans, by agent", "The median round.",
              Query(quantile(0.5, "compaction_round_spans_ratio", "agent", **OF), "{{agent}}"), unit=SHARE, bounds=(0, 1)),
        lines("Raw share, by agent", "The median round.",
              Query(quantile(0.5, "compaction_round_raw_ratio", "agent", **OF), "{{agent}}"), unit=SHARE, bounds=(0, 1)),
        events("Rounds, by cause", "Rounds a minute. A rehydration brings evidence back, as an order asks for.",
              Query(each_minute("compaction_rounds_total", "cause", **OF), "{{cause}}")),
    ]  # fmt: skip


def _findings() -> list[Panel]:
    found = "compaction_findings_total"
    return [
        lines("Sessions by state", "By the worst of what is open in them.",
              Query(total("compaction_sessions", "state", **OF), "{{state}}"), stacked=True),
        events("Raised, by check", "Findings a minute. The points are single findings; each names its session.",
              Query(only(each_minute, found, "check", status="raised", **OF), "{{check}}", exemplars=True)),
        events("Orders sent, by action", "First sendings a minute. The points are single orders; each names its session.",
              Query(only(each_minute, "compaction_orders_total", "action", status="sent", **OF), "{{action}}", exemplars=True)),
        columns("Checks", "What each check found in the range shown, and what is open now.", "check",
                Query(total("compaction_findings_open", "check", **OF), "open now"),
                Query(increase(found, "check", status="raised", severity="critical", **OF), "critical"),
                Query(increase(found, "check", status="raised", severity="warning", **OF), "warning"),
                Query(increase(found, "check", status="raised", severity="info", **OF), "info"),
                Query(increase(found, "check", status="resolved", **OF), "resolved"), height=12),
    ]  # fmt: skip
