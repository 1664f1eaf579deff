"""The tracked set: the propositions of a session that must not get lost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from compaction_events.facts import PropositionStated
from compaction_monitor.step import Step
from compaction_monitor.tree import MAX_TRACKED, Tracked, short


def stated(step: Step, fact: PropositionStated) -> None:
    """A proposition joins the tracked set, or is stated again; pinned once is pinned for good."""
    tree = step.tree
    place = tree.bit(fact.proposition)
    ledger = tree.ledger
    if place is None:
        track(step, [Tracked(short(fact.proposition), fact.turn, short(fact.span_id), fact.pinned, True)])
        return
    known = ledger.tracked[place]
    if known.stated:
        told = known._replace(pinned=known.pinned or fact.pinned)
    else:  # a checkpoint retained it before its statement came
        told = Tracked(known.proposition, fact.turn, short(fact.span_id), fact.pinned, True)
    if told != known:
        tree.ledger = replace(ledger, tracked=(*ledger.tracked[:place], told, *ledger.tracked[place + 1 :]))


def unstated(step: Step, propositions: Iterable[str]) -> list[Tracked]:
    """Those not tracked yet: somebody retains them, though nobody stated them."""
    return [Tracked(short(p), 0, "", False, False) for p in propositions if step.tree.bit(p) is None]


def track(step: Step, entries: list[Tracked]) -> None:
    """Add to the tracked set while there is room."""
    tree = step.tree
    if not entries:
        return
    unique = list({entry.proposition: entry for entry in entries}.values())
    room = MAX_TRACKED - len(tree.ledger.tracked)
    if len(unique) > room:
        step.count("propositions_dropped")
    if room > 0:
        tree.ledger = replace(tree.ledger, tracked=(*tree.ledger.tracked, *unique[:room]))
        step.session.has_tree = True
