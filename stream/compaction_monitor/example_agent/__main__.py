"""`python -m compaction_monitor.example_agent`: an agent, a controller, or both."""

from __future__ import annotations

import argparse
import logging
import threading
from collections.abc import Sequence
from contextlib import suppress

from compaction_events.emitter import Emitter
from compaction_monitor import example_agent
from compaction_monitor.example_agent.agent import AGENT, Agent, RemoteAgent, controller_for, log, serve


def main(arguments: Sequence[str] | None = None) -> None:
    """Run an agent, a controller, or both, until interrupted."""
    parser = argparse.ArgumentParser(description=example_agent.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", default="127.0.0.1:9092", metavar="HOST:PORT")
    parser.add_argument("--agent", default=AGENT, help="its name")
    parser.add_argument("--session", default="example-1", help="the session's id")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--prefix", default="compaction", help="topics are PREFIX.events, .outcomes, .findings")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--every-s", type=float, default=2.0, help="seconds between passes")
    how.add_argument("--listen", type=int, metavar="PORT", help="pass when told")
    how.add_argument("--obey-for", type=int, metavar="PORT", help="only the controller of an agent that listens")
    given = parser.parse_args(arguments)
    logging.basicConfig(level="INFO", format="%(asctime)s %(name)s %(message)s")
    with suppress(KeyboardInterrupt):
        _control(given) if given.obey_for else _work(given)


def _control(given: argparse.Namespace) -> None:
    # A static member: one that comes back after a crash need not wait until the old one is given up.
    consumer = {"start": "earliest", "group_instance_id": given.agent}
    remote = RemoteAgent(given.obey_for)
    with controller_for(remote, given.broker, given.agent, group_id=given.agent, consumer=consumer, **_topics(given)):
        log.info("obeying")
        threading.Event().wait()


def _work(given: argparse.Namespace) -> None:
    with Emitter(given.broker, agent=given.agent, topic=f"{given.prefix}.events") as emitter:
        agent = Agent(emitter, given.session, given.seed)
        if given.listen is not None:
            with serve(agent, given.listen) as server:
                server.serve_forever()
        with controller_for(agent, given.broker, given.agent, sessions=[given.session], **_topics(given)):
            while not threading.Event().wait(given.every_s):
                log.info(agent.compact())


def _topics(given: argparse.Namespace) -> dict[str, str]:
    return {"findings_topic": f"{given.prefix}.findings", "outcomes_topic": f"{given.prefix}.outcomes"}


if __name__ == "__main__":
    main()
