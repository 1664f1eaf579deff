"""The tracked set: the propositions of a session that must not get lost."""

from __future__ import annotations

from collections.abc import Collection

from compaction_events.facts import PropositionStated
from compaction_monitor.loop.step import Step
from compaction_monitor.state.nodes import MAX_TRACKED, MAX_UNSTATED, Tracked, TrackedSet, kept_id


def stated(step: Step, fact: PropositionStated) -> None:
    """A proposition joins the tracked set, or is stated again; pinned once is pinned for good."""
    tracked = step.tree.tracked
    place = tracked.place(fact.proposition)
    told = Tracked(kept_id(fact.proposition), fact.turn, kept_id(fact.span_id), fact.pinned, True)
    if place is None:
        room = MAX_TRACKED - len(tracked.entries)
        step.count("facts", fact.type, "new" if room else "no_room")
        _add(step, [told], room)
        return
    known = tracked.entries[place]
    if known.stated:  # unless a checkpoint retained it before its statement came, the first statement stands
        told = known._replace(pinned=known.pinned or fact.pinned)
    step.count("facts", fact.type, "repeat" if told == known else "new")
    if told != known:
        entries = (*tracked.entries[:place], told, *tracked.entries[place + 1 :])
        step.tree.ledger = step.tree.ledger._replace(tracked=TrackedSet(entries))


def track_retained(step: Step, propositions: Collection[str]) -> None:
    """What somebody retains is tracked too, though nobody stated it, while it takes no room from what was stated."""
    tracked = step.tree.tracked
    if tracked.places.keys() >= set(propositions):  # as nearly always
        return
    new = dict.fromkeys(kept_id(p) for p in propositions if tracked.place(p) is None)
    if new:
        room = min(MAX_TRACKED - len(tracked.entries), MAX_UNSTATED - tracked.unstated)
        _add(step, [Tracked(proposition, 0, "", False, False) for proposition in new], room)


def _add(step: Step, entries: list[Tracked], room: int) -> None:
    """Add to the tracked set while there is room."""
    ledger = step.tree.ledger
    if len(entries) > room:
        step.count("propositions_dropped")
        if not ledger.dropped:
            ledger = step.tree.ledger = ledger._replace(dropped=True)
    if room > 0:
        step.tree.ledger = ledger._replace(tracked=TrackedSet((*ledger.tracked.entries, *entries[:room])))
    step.session.has_tree = True
