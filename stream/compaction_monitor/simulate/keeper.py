"""The agent of a saturating run: 40 hours over a hierarchy of checkpoints, which it reports, and asks for constraints.

Source: "How should an instance distinguish checkpoint staleness from summary-space saturation in hierarchical agent
compaction", What Was Observed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np

from compaction_events.facts import (
    CheckpointRegenerated,
    CheckpointWritten,
    ChildVersion,
    Controller,
    Fact,
    PropositionMissed,
    PropositionStated,
    SessionEnded,
    SessionStarted,
    Sources,
    Symptom,
    Topology,
    Turns,
)
from compaction_monitor.simulate.hierarchy import BITS_PER_TOKEN, Budgets, Node, Summariser, entropy, listen, need_tokens
from compaction_monitor.simulate.notes import Facts, Talk

AGENT: Final = "reference-keeper"
START: Final = datetime(2026, 1, 5, 9, tzinfo=UTC)
TURN_LENGTH: Final = timedelta(hours=1) / 64  # 2,560 turns, five roots' worth, in the observed 40 hours
CALL: Final = timedelta(seconds=2)  # one answer of the summariser; several fit into a turn
ASK_EVERY_TURNS: Final = 80  # *fitted* to the four regenerations that were forced in the first 20 hours
ROOT: Final = "root"
BUDGETS: Final = Budgets()
TALK: Final = Talk()
TIGHT: Final = 0.48  # less than half: what a mid cannot say has to be more than the filler


class Keeper:
    """A session.

    Args:
        seed: Of what is said, of the summariser's chance, and of what is asked for.
        controlled: It says that somebody answers orders.
        tight_mids: Places (from 0) of mids whose budget is `TIGHT` of what they have to say.

    Attributes:
        nodes: By name, the root under `root` until it is split.
        regenerations: How often a root was generated anew and committed.
        regenerating: It answers a miss by regenerating, until somebody tells it to stop.
        turn: Where the work is.
        history: At each ask: the hour, the constraints that the root retains, and the regenerations so far.
        lost_again: Constraints that a committed regeneration dropped which the version before had.
    """

    def __init__(
        self,
        seed: int,
        budgets: Budgets = BUDGETS,
        talk: Talk = TALK,
        *,
        session_id: str = "",
        start: datetime = START,
        controlled: bool = False,
        tight_mids: Iterable[int] = (),
    ) -> None:
        self.facts = Facts(talk, seed, budgets.leaf_turns)
        self.budgets = budgets
        self.session_id = session_id or f"saturation-{seed}"
        self.start, self.at = start, start
        self.controlled = controlled
        self.nodes: dict[str, Node] = {}
        self.summariser = Summariser(self.facts, budgets, seed)
        self.regenerations = self.lost_again = 0
        self.regenerating = True
        self._tight = frozenset(tight_mids)
        self.asked = 0
        self.turn = budgets.root_turns
        self.history: list[tuple[float, int, int]] = []
        self._asking = np.random.default_rng([seed, 5])

    @property
    def roots(self) -> list[Node]:
        """The root, or the parts it was split into."""
        return [node for node in self.nodes.values() if node.level == 3]

    @property
    def held(self) -> frozenset[int]:
        """The constraints that the root retains."""
        return self.facts.constraints & frozenset[int]().union(*(node.retained for node in self.roots))

    def at_turn(self, turn: int) -> None:
        """The work has come to a turn; time never runs back."""
        self.at = max(self.at, self.start + TURN_LENGTH * turn)

    def started(self) -> SessionStarted:
        """The session's first fact."""
        controller = Controller.expected if self.controlled else None
        return SessionStarted(
            session_id=self.session_id,
            agent=AGENT,
            started_at=self.start,
            max_depth=3,
            topology=Topology.tree,
            source="simulation",
            controller=controller,
        )

    def ended(self) -> SessionEnded:
        """Its last one."""
        return SessionEnded(session_id=self.session_id, agent=AGENT, ended_at=self.at + TURN_LENGTH)

    def stated(self) -> Iterator[PropositionStated]:
        """The constraints, as they are stated."""
        for number in sorted(self.facts.constraints):
            said = self.facts.all[number]
            yield PropositionStated(
                session_id=self.session_id,
                proposition=said.name,
                turn=said.turn,
                span_id=f"turn-{said.turn}",
                pinned=True,
            )

    def build(self, *, leaves_per_mid: int | None = None) -> Iterator[Fact]:
        """Write every leaf and mid up to the root, and the root.

        Args:
            leaves_per_mid: The root reads the mids as they are after so many of their leaves; None: all of them.
        """
        for place in range(self.budgets.root_turns // self.budgets.mid_turns):
            yield from self._grow_mid(place, leaves_per_mid)
        yield self.commit(self._new_root())

    def finish_mids(self) -> Iterator[Fact]:
        """Write the mids that were read early anew, all their leaves in them."""
        for node in [node for node in self.nodes.values() if node.level == 2]:
            leaves = self._leaves(node)
            if len(leaves) > len(node.reads):
                listen(node, leaves)
                yield self.commit(node)

    def asks(self, first: int, last: int) -> Iterator[int]:
        """The turns after `first`, up to `last`, at which the work asks for a constraint; time comes to each.

        What the root retains is noted at each in `history`.
        """
        begin = max(first, self.budgets.root_turns) + 1
        for turn in range(begin + -(begin - self.budgets.root_turns - 1) % ASK_EVERY_TURNS, last + 1, ASK_EVERY_TURNS):
            self.turn = turn
            self.at_turn(turn)
            self.history.append((round(turn * TURN_LENGTH.total_seconds() / 3_600, 2), len(self.held), self.regenerations))
            yield turn

    def ask(self) -> Node | None:
        """Look for a constraint, whichever the work needs now: where it was missed, or None if it was there.

        The one asked for is left in `asked`.
        """
        self.asked = int(self._asking.integers(0, len(self.facts.constraints)))
        if self.asked in self.held:
            return None
        return next((node for node in self.roots if self.asked in node.content), self.roots[0])

    def missed(self, node: Node) -> PropositionMissed:
        """The fact that the constraint asked for was not there."""
        return PropositionMissed(
            session_id=self.session_id,
            node_id=node.name,
            proposition=self.facts.all[self.asked].name,
            at=self.at,
            by="agent",
            symptom=Symptom.constraint,
        )

    def regenerate(self, node: Node, text: frozenset[int] | None = None) -> CheckpointRegenerated:
        """Generate a node anew from its children as they are now, and commit it.

        Args:
            text: A text already written, kept from a trial.
        """
        self.read(node)
        before = self.facts.constraints & node.retained
        node.retained = self.summariser.write(node) if text is None else text
        self.lost_again += len(before - node.retained)
        self.regenerations += node.level == 3
        node.version += 1
        self.at += CALL
        return CheckpointRegenerated(**self._fields(node), retained=self._retained(node), at=self.at, version=node.version)

    def tried(self, node: Node, text: frozenset[int], order_id: str, number: int) -> CheckpointRegenerated:
        """The fact that a trial retained `text`; nothing is committed."""
        self.at += CALL
        given = {"retained": self.facts.names(text), "at": self.at, "remediation_id": order_id, "trial_number": number}
        return CheckpointRegenerated(**self._fields(node), **given)

    def read(self, node: Node) -> None:
        """A node's children as they are now; a leaf has none."""
        if node.reads:
            listen(node, [self.nodes[name] for name in node.reads])

    def announced(self) -> Iterator[CheckpointWritten]:
        """Every checkpoint as it stands, for a monitor that was not there when it was written."""
        for node in self.nodes.values():
            self.at += timedelta(milliseconds=1)
            yield self._written(node)

    def commit(self, node: Node) -> CheckpointWritten:
        """Write a node from what it has heard, and commit it."""
        node.retained = self.summariser.write(node)
        node.version += 1
        self.nodes[node.name] = node
        self.at += CALL
        return self._written(node)

    def split(self, node: Node, parts: list[tuple[int, int, frozenset[int] | None]]) -> Iterator[CheckpointWritten]:
        """Replace a node by parts of its own budget, each over some of its children.

        Args:
            parts: The first and the last turn of each, and what it is to cover (None: all that its children say).
        """
        children = [self.nodes[name] for name in node.reads]
        for number, (first, last, covers) in enumerate(parts, 1):
            part = Node(f"{node.name}.{number}", node.level, first, last, node.budget_tokens, node.parent, covers=covers)
            listen(part, [child for child in children if child.last >= first and child.first <= last])
            yield self.commit(part)
        del self.nodes[node.name]

    def _grow_mid(self, place: int, leaves_read: int | None) -> Iterator[Fact]:
        budgets = self.budgets
        first = 1 + place * budgets.mid_turns
        mid = Node(f"mid-{place + 1}", 2, first, first + budgets.mid_turns - 1, budgets.mid_tokens, ROOT)
        count = budgets.mid_turns // budgets.leaf_turns
        for number in range(count):
            turn = first + number * budgets.leaf_turns
            leaf = Node(f"{mid.name}.{number + 1}", 1, turn, turn + budgets.leaf_turns - 1, budgets.leaf_tokens, mid.name)
            leaf.heard = (frozenset(said.number for said in self.facts.all if said.times(leaf.first, leaf.last)),)
            self.at_turn(leaf.last)
            yield self.commit(leaf)
            if number + 1 == (leaves_read or count):
                listen(mid, self._leaves(mid))
                if place in self._tight:
                    mid.budget_tokens = int(TIGHT * need_tokens(self.facts, mid))
                yield self.commit(mid)

    def _new_root(self) -> Node:
        root = Node(ROOT, 3, 1, self.budgets.root_turns, self.budgets.root_tokens)
        listen(root, [node for node in self.nodes.values() if node.level == 2])
        return root

    def _leaves(self, mid: Node) -> list[Node]:
        return [node for node in self.nodes.values() if node.parent == mid.name]

    def _written(self, node: Node) -> CheckpointWritten:
        return CheckpointWritten(**self._fields(node), retained=self._retained(node), written_at=self.at, version=node.version)

    def _retained(self, node: Node) -> tuple[str, ...]:
        return self.facts.names(node.retained)

    def _fields(self, node: Node) -> dict[str, Any]:
        joint, redundancy = entropy(self.facts, node)
        return {
            "session_id": self.session_id,
            "node_id": node.name,
            "level": node.level,
            "parent_id": node.parent,
            "children": tuple(ChildVersion(node_id=name, version=version) for name, version in node.reads.items()),
            "sources": Sources.children if node.reads else Sources.raw,
            "budget_tokens": node.budget_tokens,
            "child_joint_entropy_bits": joint,
            "child_redundancy": redundancy,
            "bits_per_token": BITS_PER_TOKEN,
            "turns": Turns(first=node.first, last=node.last),
        }
