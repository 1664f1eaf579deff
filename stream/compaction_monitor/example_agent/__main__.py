"""`python -m compaction_monitor.example_agent`: an agent, a controller, or both."""

from __future__ import annotations

import argparse
import logging
import threading
from collections.abc import Sequence

from compaction_events.emitter import Emitter
from compaction_monitor import example_agent
from compaction_monitor.example_agent.agent import AGENT, Agent, RemoteAgent, controller_for, log, serve


def main(arguments: Sequence[str] | None = None) -> None:
    """Run an agent, a controller, or both."""
    parser = argparse.ArgumentParser(description=example_agent.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", default="127.0.0.1:9092", help="HOST:PORT")
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
    topics = {"findings_topic": f"{given.prefix}.findings", "outcomes_topic": f"{given.prefix}.outcomes"}
    if given.obey_for:
        # A static member: one that comes back after a crash need not wait until the old one is given up.
        consumer = {"start": "earliest", "group_instance_id": given.agent}
        options = {"group_id": given.agent, "consumer": consumer, **topics}
        with controller_for(RemoteAgent(given.obey_for), given.broker, given.agent, **options):
            log.info("obeying")
            threading.Event().wait()
    with Emitter(given.broker, agent=given.agent, topic=f"{given.prefix}.events") as emitter:
        agent = Agent(emitter, given.session, given.seed)
        if given.listen is not None:
            with serve(agent, given.listen) as server:
                log.info("listening on port %d", server.server_address[1])
                server.serve_forever()
        with controller_for(agent, given.broker, given.agent, sessions=[given.session], **topics):
            while not threading.Event().wait(given.every_s):
                log.info(agent.compact())


if __name__ == "__main__":
    main()
