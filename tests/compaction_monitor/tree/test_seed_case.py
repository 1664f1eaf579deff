"""The case the rules come from: a three-level hierarchy over 512 turns, and two constraints its root forgets in turn.

Leaves every 8 turns, mids every 64, a root at 512. "The export must exclude PII columns" is stated at turn 30 and
reinforced at 210 and 480 in other words; its id comes from what survives paraphrase, so it is one proposition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compaction_events.builders import missed, regenerated, started, stated, written
from compaction_events.facts import Fact
from compaction_monitor.harness import Offline
from tests.compaction_monitor.tree.trees import counted, evidence, in_short, order_id, reads, trial

PII, RATE = "pii-columns", "rate-limit-50-rps"
REST = [f"c{number}" for number in range(17)]
ALL = [PII, RATE, *REST]  # 19 propositions
ROOT_ROOM: dict[str, Any] = {
    "budget_tokens": 2_000,
    "bits_per_token": 4.0,
    "child_joint_entropy_bits": 40_000.0,
    "child_redundancy": 0.7,
}
TRIAL = "ordered run_trial_regeneration root: node_id=root trial_number={} trials_max=3"


def session(mids_hold: bool, root: Sequence[str], **room: Any) -> list[Fact]:
    """Facts in the order of the turns, one a minute; `mids_hold`: the mids at 256 and 448 state the constraint."""
    facts: list[Fact] = [started()]
    facts += [stated(p, turn, pinned=True) for p, turn in [(PII, 30), (RATE, 40), (PII, 210), (PII, 480)]]
    facts += [stated(p, 50 + turn) for turn, p in enumerate(REST)]
    for end in range(64, 513, 64):
        leaves = range(end - 56, end + 1, 8)
        facts += [written(f"leaf-{leaf}", 1, leaf, level=1, retained=[PII, *REST] if leaf in (32, 216, 480) else REST,
                          sources="raw", turns={"first": leaf - 7, "last": leaf}) for leaf in leaves]  # fmt: skip
        held = [PII, RATE, *REST] if mids_hold and end in (256, 448) else [RATE, *REST]
        facts.append(written(f"mid-{end}", 1, end, level=2, retained=held, children=reads(*(f"leaf-{leaf}" for leaf in leaves)),
                             turns={"first": end - 63, "last": end}))  # fmt: skip
    children = reads(*(f"mid-{end}" for end in range(64, 513, 64)))
    facts.append(written("root", 1, 512, level=3, retained=list(root), children=children, **room))
    return facts


def test_the_mids_hold_it_and_the_root_is_saturated() -> None:
    """Eleven or so of nineteen, each time others: give it room, do not regenerate."""
    monitor = Offline()
    assert in_short(monitor.feed(session(True, [RATE, *REST[:10]], **ROOT_ROOM))) == []
    found = [monitor.feed([missed("root", PII, 513, symptom="constraint")])]
    for number, held in enumerate([[RATE, *REST[:9], REST[11]], [PII, *REST[4:14]]], 1):
        order = order_id(found[-1], "run_trial_regeneration")
        found.append(monitor.feed([trial("root", 513 + number, number, held, remediation_id=order)]))
    assert [in_short(lines) for lines in found] == [
        [TRIAL.format(1)],
        [TRIAL.format(2)],
        [
            "raised saturated critical root",
            "ordered rebalance root: needed_tokens=3000 node_id=root options=[(raise 1450 3450),(split 2000 2000 2)]",
        ],
    ]
    assert evidence(found[-1], "saturated")["delta_ratio"] == 0.0


def test_it_is_given_room_once_and_keeps_both_constraints() -> None:
    monitor = Offline()
    monitor.feed(session(True, [RATE, *REST[:10]], **ROOT_ROOM))
    found = monitor.feed([trial("root", 514, 1, [PII, *REST[7:17]])])
    commit = regenerated("root", 520, level=3, version=2, retained=ALL, **{**ROOT_ROOM, "budget_tokens": 3_450})
    assert in_short(monitor.feed([commit, missed("root", PII, 521)])) == ["resolved saturated recovered root"]
    assert order_id(found, "rebalance")
    assert counted(monitor, "orders_ended") == {("rebalance", "completed"): 1}


def test_the_root_was_regenerated_four_times_without_asking() -> None:
    """What the operator did: each regeneration recovers one constraint and loses another."""
    monitor = Offline()
    monitor.feed(session(True, [RATE, *REST[:10]], **ROOT_ROOM))
    versions = [[PII, *REST[:10]], [RATE, *REST[3:13]], [PII, *REST[5:15]], [RATE, *REST[6:16]]]
    found = [
        monitor.feed([regenerated("root", 520 + n, level=3, version=2 + n, retained=held)]) for n, held in enumerate(versions)
    ]
    assert [[line.split(":")[0] for line in in_short(lines)] for lines in found] == [
        [],
        ["raised regeneration_loop critical root", "ordered stop_regenerating root", "ordered rebalance root"],
        [],
        [],
    ]
    assert evidence(found[1], "regeneration_loop")["oscillating"][:2] == [PII, RATE]


def test_the_mids_lost_it_too() -> None:
    """No action at the root can recover it: the raw log of turn 30, and where on the way up it was lost."""
    monitor = Offline()
    monitor.feed(session(False, [RATE, *REST[:10]], **ROOT_ROOM))
    found = monitor.feed([missed("root", PII, 513, symptom="constraint")])
    assert in_short(found) == [
        f"raised upstream_loss critical {PII}",
        f"ordered escalate_to_raw {PII}: ids=[{PII}] lost_at_level=2 nearest_holder=leaf-32 node_id=root span_ids=[span-30] "
        "what=propositions",
    ]


def test_a_stale_root_that_recovers_a_little() -> None:
    """Within noise: the trial shows that nothing is gained, and nothing is committed."""
    monitor = Offline()
    monitor.feed(session(True, [RATE, *REST[:10]], **{**ROOT_ROOM, "budget_tokens": 3_450}))
    asked = monitor.feed([written("mid-448", 2, 530, level=2, retained=ALL), missed("root", PII, 531)])
    order = order_id(asked, "run_trial_regeneration")
    assert in_short(monitor.feed([trial("root", 532, 1, [PII, RATE, *REST[:10]], remediation_id=order)])) == []
    assert counted(monitor, "verdicts") == {("stable", "kept"): 1}


def test_a_stale_root_that_recovers_much() -> None:
    monitor = Offline()
    monitor.feed(session(True, [RATE, *REST[:10]], **{**ROOT_ROOM, "budget_tokens": 3_450}))
    asked = monitor.feed([written("mid-448", 2, 530, level=2, retained=ALL), missed("root", PII, 531)])
    order = order_id(asked, "run_trial_regeneration")
    found = monitor.feed([trial("root", 532, 1, ALL, remediation_id=order, children=reads(("mid-448", 2)))])
    commit = regenerated("root", 533, level=3, version=2, retained=ALL, children=reads(("mid-448", 2)), **ROOT_ROOM)
    roomy = commit.model_copy(update={"budget_tokens": 3_450})
    assert [in_short(lines) for lines in (asked, found, monitor.feed([roomy]))] == [
        [TRIAL.format(1)],
        ["raised stale warning root", "ordered regenerate_parent root: commit_trial=1 node_id=root"],
        ["resolved stale recovered root"],
    ]


def test_a_saturated_mid_under_a_root_that_looks_healthy() -> None:
    monitor = Offline()
    room = {**ROOT_ROOM, "budget_tokens": 3_450}
    facts = session(True, [RATE, *REST[:10]], **room)
    short = written("mid-256", 1, 256, level=2, retained=[RATE], budget_tokens=500, bits_per_token=4.0,
                    child_joint_entropy_bits=4_000.0, child_redundancy=0.1)  # fmt: skip
    assert in_short(monitor.feed([short if getattr(fact, "node_id", "") == "mid-256" else fact for fact in facts])) == [
        "raised silent_composed_loss critical root",
        "ordered rebalance mid-256: needed_tokens=900 node_id=mid-256 options=[(split 500 500 2),(raise 535 1035)]",
    ]


def test_a_root_over_healthy_mids() -> None:
    monitor = Offline()
    assert in_short(monitor.feed(session(True, ALL, **{**ROOT_ROOM, "budget_tokens": 3_450}))) == []
