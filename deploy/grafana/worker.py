"""The monitor itself: is it alive, does it keep up, what does it refuse, what does it cost."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.grafana.panels import SHARE, WORKER_UID, Board, Link, Panel, Step, buckets, columns, events, lines, number
from deploy.grafana.queries import RANGE, Query, each_minute, increase, only, quantile, rate, recorded, series, total

TO_RUNBOOK: Final = "${runbooks}/${__data.fields.alertname}.md"
# A row's cells have no labels: here the worker is one of them.
TO_WORKER: Final = "http://${__data.fields.instance}/ready"


def board() -> Dashboard:
    """The dashboard."""
    board = Board(WORKER_UID, "Compaction: the monitor", "The workers: health, input, latency, what they refuse, cost.")
    board.row("Health", *_health()).row("Input", *_input()).row("Latency", *_latency())
    board.row("Refused and lost", *_refused()).row("Decisions", *_decisions())
    return board.row("State and process", *_state()).build()


def _health() -> list[Panel]:
    alerts = 'count by (alertname, severity) (ALERTS{alertname=~"Compaction.+",alertstate="firing"})'
    return [
        number("Workers ready", "Workers that have partitions, their state, and a broker.",
               Query(total("compaction_ready"), "ready"), base="red", steps=[Step(1, "green")]),
        number("Partitions without a worker", "Nobody reads these.",
               Query(f"max({series('compaction_partitions')}) - {total('compaction_partitions_owned')}", "unowned"),
               base="green", steps=[Step(1, "red")]),
        number("Lag", "Input records that are not committed yet.",
               Query(recorded("namespace_job:compaction_lag_records:sum"), "lag"), base="green", steps=[Step(5_000, "orange")]),
        number("Detection delay, p99", "From the append of an event to the commit of what was found, over the range shown.",
               Query(quantile(0.99, "compaction_detection_delay_seconds", over=RANGE), "p99"), unit="s", base="green",
               steps=[Step(5, "orange"), Step(30, "red")]),
        number("Dead letters", "Records that break the contract, in the range shown.",
               Query(increase("compaction_dead_letters_total"), "dead letters"), base="green", steps=[Step(1, "orange")]),
        number("Still to recover", "Changelog records that a recovery under way has to read.",
               Query(total("compaction_recovery_remaining_records"), "records"), base="green", steps=[Step(1, "orange")]),
        columns("Alerts firing", "Of Prometheus' rules; a name leads to its runbook. The watchdog always "
                "fires: where it is missing, nobody evaluates the rules.", "alertname",
                Query(alerts, "firing"), links=[Link("Runbook", TO_RUNBOOK)],
                width=12, height=6),
        columns("Workers", "Who runs which version; a name leads to what it says at /ready, where that name is an address.",
                "instance", Query(f"max by (instance, version, python) ({series('compaction_build_info')})", "up"),
                links=[Link("This worker", TO_WORKER)], width=12, height=6),
    ]  # fmt: skip


def _input() -> list[Panel]:
    behind = f"time() - max by (partition) ({series('compaction_watermark_timestamp_seconds')})"
    return [
        lines("Records consumed, by worker", "Input records a second, committed.",
              Query(rate("compaction_records_consumed_total", "instance"), "{{instance}}"), unit="ops", stacked=True),
        lines("Lag, by partition", "Input records that are not committed yet, of events and outcomes.",
              Query(total("compaction_lag_records", "partition"), "{{partition}}")),
        lines("Age of the latest record, by partition", "Since the append of the last record committed. Large beside a lag "
              "of 0: nothing was sent.", Query(behind, "{{partition}}"), unit="s"),
        events("Facts, by what became of them", "A minute. All but `new` and `trial` have no effect; a `gap` is told beside.",
              Query(each_minute("compaction_facts_total", "outcome"), "{{outcome}}")),
        events("Facts, by type", "A minute.", Query(each_minute("compaction_facts_total", "type"), "{{type}}")),
        lines("Phase of the workers", "How many workers are in which phase.",
              Query(total("compaction_phase", "phase"), "{{phase}}"), stacked=True),
    ]  # fmt: skip


def _latency() -> list[Panel]:
    delay, transaction = "compaction_detection_delay_seconds", "compaction_transaction_duration_seconds"
    return [
        lines("Detection delay", "From the append of an event to the commit of what was found.",
              Query(quantile(0.5, delay), "p50"), Query(quantile(0.99, delay), "p99"), unit="s"),
        buckets("Detection delay, all", "How many findings came how late.", delay, unit="s"),
        lines("Transactions", "From the first record handed over to the commit.",
              Query(quantile(0.5, transaction), "p50"), Query(quantile(0.99, transaction), "p99"), unit="s"),
    ]  # fmt: skip


def _refused() -> list[Panel]:
    read = {
        "undecodable": "compaction_records_undecodable_total",
        "lost": "compaction_records_lost_total",
        "read again": "compaction_rewinds_total",
    }
    bounded = {
        "findings": "compaction_findings_dropped_total",
        "checkpoints": "compaction_nodes_forgotten_total",
        "propositions": "compaction_propositions_dropped_total",
    }
    return [
        events("Dead letters, by reason", "A minute.",
              Query(only(each_minute, "compaction_dead_letters_total", "reason"), "{{reason}}"), width=6),
        events("Trouble with reading", "A minute. Undecodable: the client library could not read them; lost: deleted by "
              "retention before they were read; read again: batches dropped on the way.",
              *(Query(each_minute(name), legend) for legend, name in read.items()), width=6),
        events("Bounds that were reached", "A minute: what one session may hold is bounded.",
              *(Query(each_minute(name), legend) for legend, name in bounded.items()), width=6),
        lines("Transactions, by result", "A second. An aborted one is computed again.",
              Query(rate("compaction_transactions_total", "result"), "{{result}}"), unit="ops", width=6),
    ]  # fmt: skip


def _decisions() -> list[Panel]:
    return [
        events("Checks skipped, by reason", "A minute: what an agent did not say, so that a check was blind.",
              Query(only(each_minute, "compaction_checks_skipped_total", "reason"), "{{reason}}")),
        events("Verdicts over trials", "A minute.",
              Query(each_minute("compaction_verdicts_total", "verdict"), "{{verdict}}")),
        events("Missed propositions", "A minute, by what they mean.",
              Query(each_minute("compaction_missed_total", "decision"), "{{decision}}")),
        events("Held back", "A minute: orders by why they were not sent, trials by why they were not asked for.",
              Query(only(each_minute, "compaction_orders_held_total", "reason"), "order: {{reason}}"),
              Query(only(each_minute, "compaction_trials_held_total", "reason"), "trial: {{reason}}")),
        events("Answers of controllers", "A minute.",
              Query(each_minute("compaction_answers_total", "status"), "{{status}}")),
        events("Sessions closed", "A minute: silent for a day.",
              Query(each_minute("compaction_sessions_expired_total"), "expired")),
    ]  # fmt: skip


def _state() -> list[Panel]:
    by_worker = [
        ("Rows in the stores", "Sessions and checkpoints, estimated.", total("compaction_store_rows", "instance"), "short"),
        ("Bytes in the stores", "Live rows, estimated.", total("compaction_store_bytes", "instance"), "bytes"),
        ("Partitions", "At work, by worker.", total("compaction_partitions_owned", "instance"), "short"),
        ("Last recovery", "How long it took.", total("compaction_recovery_duration_seconds", "instance"), "s"),
        ("CPU", "Seconds a second; a worker uses one core.", rate("process_cpu_seconds_total", "instance"), SHARE),
        ("Memory", "Resident.", total("process_resident_memory_bytes", "instance"), "bytes"),
        ("Open files", "Sockets and the store's files.", total("process_open_fds", "instance"), "short"),
    ]
    own = [lines(title, told, Query(expr, "{{instance}}"), unit=unit, width=6) for title, told, expr, unit in by_worker]
    counted = lines(
        "Sessions counted", "Partitions whose sessions are all in the figures of the other dashboards; below those at work "
        "while the first sweep after an assignment reads.",
        Query(total("compaction_partitions_owned"), "at work"), Query(total("compaction_partitions_counted"), "counted"),
        width=6,
    )  # fmt: skip
    return [*own, counted]
