"""Controllers that do not do as they say, as processes: `python -m tests.e2e.controllers --how lie …`."""

from __future__ import annotations

import argparse
import logging
import os
import threading
from typing import Any

from compaction_events.controller import Controller, OrderRejectedError
from compaction_events.emitter import Emitter
from compaction_events.facts import AckStatus
from compaction_events.findings import RemediationRequested
from compaction_monitor.example_agent.agent import RemoteAgent


class AnswersTwice(Controller):
    """Says `completed` once more."""

    def _answer(self, emitter: Emitter, order: RemediationRequested, status: AckStatus, detail: str | None = None) -> None:
        for _ in range(2 if status is AckStatus.completed else 1):
            super()._answer(emitter, order, status, detail)


def refuse(_: RemediationRequested) -> str:
    raise OrderRejectedError("not while a customer waits")


def fail(_: RemediationRequested) -> str:
    raise RuntimeError("no disk")


def lie(_: RemediationRequested) -> str:
    return "as you wish"


def die_in_between(agent: RemoteAgent) -> Any:
    def handler(_: RemediationRequested) -> str:
        agent.tell("halt")
        os._exit(9)

    return handler


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
    handlers = {"refuse": refuse, "fail": fail, "lie": lie, "die": die_in_between(remote), "twice": remote.halt_and_rehydrate}
    kind = AnswersTwice if given.how == "twice" else Controller
    controller = kind(given.broker, agent=given.agent, **options)
    controller.on("halt_and_rehydrate")(handlers[given.how])
    controller.on("resume")(remote.resume)
    controller.on("cap_depth")(remote.cap_depth)
    with controller:
        logging.info("obeying")
        threading.Event().wait()


if __name__ == "__main__":
    main()
