"""A changelog is recovered only when every transaction in it has ended.

A transaction whose end was decided shows up topic by topic, and one that the broker has lost track of ("hanging", after
a crash of its own) never ends. Committed reads stop before it: a changelog would seem to be shorter than what was
published and acknowledged, and of findings behind it nobody would know. So what can be read is compared with what was
written, and while they differ nothing is recovered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError
from faust.types import TP

log = logging.getLogger(__name__)

LOOK_S = 0.2
# Added to the transactions' own timeout: the broker looks for overdue ones every 10 s.
GRACE_S = 20.0
# How long an answer is waited for beyond the limit: one that never comes is no transaction that does not end.
ANSWER_S = 10.0
# Up to where committed reads come, and up to where something was written.
Reach = tuple[int, int]


class Refusal(Exception):
    """The worker must not go on with what it found; the operator has to decide (exit 78)."""


async def unsettled(consumer: Any, options: Mapping[str, Any], tps: Collection[TP]) -> dict[TP, Reach]:
    """Those of the partitions that have an open transaction.

    Args:
        consumer: Faust's, which reads committed records.
        options: Of a client that does not.

    Raises:
        KafkaError: The broker does not say.
    """
    raw = AIOKafkaConsumer(isolation_level="read_uncommitted", **options)
    try:
        await raw.start()
        written = await raw.end_offsets(list(tps))
    finally:
        await raw.stop()
    stable = await consumer.highwaters(*tps)
    return {tp: (stable[tp], written[tp]) for tp in tps if stable[tp] < written[tp]}


async def settle(ask: Callable[[], Awaitable[dict[TP, Reach]]], limit_s: float, tell: Callable[[str], None]) -> None:
    """Wait until every transaction has ended that is open when it is first seen.

    Those that begin later are not waited for: whoever wrote the changelogs before is fenced, and where another monitor
    shares the findings one is open whenever one looks.

    Args:
        ask: See `unsettled`.
        limit_s: A transaction that is open for longer does not end by itself.
        tell: Called with what is waited for.

    Raises:
        Refusal: One did not end.
        TimeoutError: Whether it has cannot be found out.
        KafkaError: The broker refuses.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit_s
    first: dict[TP, int] = {}
    while True:
        failure: Exception
        try:
            async with asyncio.timeout_at(deadline + ANSWER_S):
                found = await ask()
        except (KafkaError, TimeoutError) as exc:
            if isinstance(exc, KafkaError) and not exc.retriable:
                raise
            failure = TimeoutError(f"whether all transactions have ended cannot be asked: {exc!r}")
        else:
            # The lower one: a log can lose its end with its leader.
            first |= {tp: min(written, first.get(tp, written)) for tp, (_, written) in found.items()}
            still_open = {tp: (stable, first[tp]) for tp, (stable, _) in found.items() if stable < first[tp]}
            if not still_open:
                return
            failure = Refusal(_described(still_open))
        tell(str(failure))
        if loop.time() >= deadline:
            raise failure
        await asyncio.sleep(LOOK_S)


def _described(still_open: Mapping[TP, Reach]) -> str:
    tp, (stable, written) = min(still_open.items())
    others = f", and {len(still_open) - 1} more" if len(still_open) > 1 else ""
    return (
        f"{tp.topic} partition {tp.partition}: a transaction is open from {stable} on (written up to {written}){others}. "
        "Nothing behind it can be read, so there is no going on. Whether it was committed says kafka-transactions.sh "
        f"find-hanging and describe-producers --topic {tp.topic} --partition {tp.partition}"
    )
