"""Controllers that do not do as they say, as processes: `python -m tests.e2e.controllers --how lie …`."""

from __future__ import annotations

import argparse
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

from compaction_events.controller import Controller, OrderRejectedError
from compaction_events.emitter import Emitter
from compaction_events.facts import AckStatus
from compaction_events.findings import RemediationRequested
from compaction_monitor.example_agent.agent import RemoteAgent

DEADLINE_S = 60


class AnswersTwice(Controller):
    """Says `completed` once more."""

    def _answer(self, emitter: Emitter, order: RemediationRequested, status: AckStatus, detail: str | None = None) -> None:
        for _ in range(2 if status is AckStatus.completed else 1):
            super()._answer(emitter, order, status, detail)


class DiesInBetween(Controller):
    """Has said `accepted`, and is gone."""

    def _answer(self, emitter: Emitter, order: RemediationRequested, status: AckStatus, detail: str | None = None) -> None:
        super()._answer(emitter, order, status, detail)
        emitter.flush(DEADLINE_S)
        self.halt()
        os._exit(9)

    halt: Callable[[], object]


def refuse(_: RemediationRequested) -> str:
    raise OrderRejectedError("not while a customer waits")


def fail(_: RemediationRequested) -> str:
    raise RuntimeError("no disk")


def lie(_: RemediationRequested) -> str:
    return "as you wish"


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("broker", "agent", "prefix", "obey-for", "how"):
        parser.add_argument(f"--{name}", required=True)
    given = parser.parse_args()
    logging.basicConfig(level="INFO")
    remote = RemoteAgent(int(given.obey_for))
    options: dict[str, Any] = {
        "group_id": given.agent,
        "consumer": {"start": "earliest", "group_instance_id": given.agent},
        "findings_topic": f"{given.prefix}.findings",
        "outcomes_topic": f"{given.prefix}.outcomes",
    }
    kind = {"twice": AnswersTwice, "die": DiesInBetween}.get(given.how, Controller)
    controller = kind(given.broker, agent=given.agent, **options)
    if isinstance(controller, DiesInBetween):
        controller.halt = lambda: remote.tell("halt")
    handlers = {"refuse": refuse, "fail": fail, "lie": lie}
    controller.on("halt_and_rehydrate")(handlers.get(given.how, remote.halt_and_rehydrate))
    controller.on("resume")(remote.resume)
    controller.on("cap_depth")(remote.cap_depth)
    with controller:
        logging.info("obeying")
        threading.Event().wait()


if __name__ == "__main__":
    main()
