"""The agent, in this process or behind a port, and the controller that does with it what orders say."""

from __future__ import annotations

import logging
import random
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol
from urllib.request import Request, urlopen

import orjson

from compaction_events.controller import Controller, OrderRejectedError
from compaction_events.emitter import Emitter
from compaction_events.findings import CapDepth, HaltAndRehydrate, RemediationRequested
from compaction_monitor.example_agent.working_set import WorkingSet

log = logging.getLogger("example_agent")
AGENT = "example"
MAX_DEPTH = 3


class Obeys(Protocol):
    """What a controller does with an agent: in this process, or in another one."""

    def halt_and_rehydrate(self, order: RemediationRequested) -> str: ...
    def resume(self, order: RemediationRequested) -> str: ...
    def cap_depth(self, order: RemediationRequested) -> str: ...


class Agent:
    """Compacts when told, reports every pass, and can be halted. Safe in any thread."""

    def __init__(self, emitter: Emitter, session_id: str, seed: int = 0) -> None:
        self._lock = threading.Lock()
        self._set = WorkingSet(random.Random(seed))  # noqa: S311 - a reproducible example, no secret
        self._halted = False
        self._max_depth = MAX_DEPTH
        self._session = emitter.session(
            session_id,
            topology="tree",
            source_spans=len(self._set.raw),
            max_depth=MAX_DEPTH,
            scorer={"name": "cosine-to-task", "depth_penalty": 0.0},
            eviction="continuous",
            controller="expected",
        )

    def compact(self) -> str:
        """One pass, unless halted."""
        with self._lock:
            if self._halted:
                return "halted"
            self._set.work()
            before = self._set.composition()
            self._set.compact(self._max_depth)
            self._session.round(before=before, summary_kind="ok", trigger="turns", **self._set.measured())
            return f"round {self._session.last_round}: {self._set}"

    def halt_and_rehydrate(self, order: RemediationRequested) -> str:
        """Stop compacting, and bring back the sources of the summaries that the plan names."""
        assert isinstance(order.plan, HaltAndRehydrate)
        with self._lock:
            there = {summary.summary_id for summary in self._set.summaries}
            steps = [step for step in order.plan.steps if step.summary_id in there]
            if not steps:  # passes have overtaken it; to halt for it would be to halt for nothing
                raise OrderRejectedError("the plan names no summary that is still there")
            self._halted = True
            for step in steps:
                self._set.expand(step.summary_id)
            self._session.round(cause="rehydration", remediation_id=order.id, **self._set.measured())
            return str(self._set)

    def halt(self) -> str:
        """Stop compacting: what a controller that dies in between has done."""
        with self._lock:
            self._halted = True
            return "halted"

    def resume(self, _: RemediationRequested) -> str:
        """Compact again."""
        with self._lock:
            self._halted = False
            return "resumed"

    def cap_depth(self, order: RemediationRequested) -> str:
        """From now on build no summary deeper than the plan says."""
        assert isinstance(order.plan, CapDepth)
        with self._lock:
            self._max_depth = order.plan.max_depth
            return f"depth {self._max_depth} at most"

    def end(self) -> str:
        """The session is over."""
        self._session.ended()
        return "ended"


class RemoteAgent:
    """An agent that listens on a port of this machine."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/"

    def tell(self, what: str, order: RemediationRequested | None = None) -> str:
        """Tell it to do something; returns what it answers.

        Raises:
            OrderRejectedError: It will not.
        """
        body = b"" if order is None else order.model_dump_json().encode()
        with urlopen(Request(self._url + what, body, method="POST"), timeout=30) as answered:  # noqa: S310 - a local address
            answer: dict[str, str] = orjson.loads(answered.read())
        if "rejected" in answer:
            raise OrderRejectedError(answer["rejected"])
        return answer["done"]

    def halt_and_rehydrate(self, order: RemediationRequested) -> str:
        """As `Agent`."""
        return self.tell("halt_and_rehydrate", order)

    def resume(self, order: RemediationRequested) -> str:
        """As `Agent`."""
        return self.tell("resume", order)

    def cap_depth(self, order: RemediationRequested) -> str:
        """As `Agent`."""
        return self.tell("cap_depth", order)


def controller_for(agent: Obeys, servers: str, name: str = AGENT, **options: Any) -> Controller:
    """The controller of an agent. An action that has no handler is answered `rejected`."""
    controller = Controller(servers, agent=name, **options)
    controller.on("halt_and_rehydrate")(agent.halt_and_rehydrate)
    controller.on("resume")(agent.resume)
    controller.on("cap_depth")(agent.cap_depth)
    return controller


def serve(agent: Agent, port: int) -> ThreadingHTTPServer:
    """Listen on 127.0.0.1: `POST /compact`, `/end`, `/halt`, and the orders' actions with the order as JSON."""
    plain = {"compact": agent.compact, "end": agent.end, "halt": agent.halt}
    orders = {"halt_and_rehydrate": agent.halt_and_rehydrate, "resume": agent.resume, "cap_depth": agent.cap_depth}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            """One thing to do."""
            what = self.path.lstrip("/")
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if what not in (orders if body else plain):
                self.send_error(404)
                return
            try:
                done = orders[what](RemediationRequested.model_validate_json(body)) if body else plain[what]()
                answer = {"done": done}
            except OrderRejectedError as rejected:
                answer = {"rejected": str(rejected)}
            log.info("%s: %s", what, answer)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(orjson.dumps(answer))

        def log_message(self, *_: Any) -> None:
            """What is done is logged above."""

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)
