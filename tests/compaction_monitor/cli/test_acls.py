"""`topics acls`: the rights of a role, as commands, as JSON and as a KafkaUser. What they allow is tested on a real Kafka."""

from __future__ import annotations

import pytest

from compaction_monitor.cli.exits import Code
from tests.compaction_monitor.cli.conftest import Run

AGENT = """\
kafka-acls.sh --bootstrap-server kafka:9093 --add --allow-principal User:coder --operation Describe --operation Write \
--topic compaction.events
kafka-acls.sh --bootstrap-server kafka:9093 --add --allow-principal User:coder --operation Describe --topic compaction.outcomes
"""


def test_commands_for_kafkas_own_tool(run: Run) -> None:
    ran = run("topics", "acls", "--role", "agent", "--principal", "User:coder", "--broker", "kafka:9093")
    assert ran == (Code.ok, AGENT, "")


def test_a_name_is_quoted_for_the_shell(run: Run) -> None:
    ran = run("topics", "acls", "--role", "agent", "--principal", "User:CN=a; rm -rf /")
    assert ran.out.count("--allow-principal 'User:CN=a; rm -rf /' ") == 2


def test_rights_and_commands_as_json(run: Run) -> None:
    words = ["topics", "acls", "--role", "agent", "--principal", "User:coder", "--broker", "kafka:9093", "--json"]
    assert run(*words).document == {
        "role": "agent",
        "principal": "User:coder",
        "commands": AGENT.splitlines(),
        "rights": [
            {"kind": "topic", "name": "compaction.events", "operations": ["Describe", "Write"], "prefix": False},
            {"kind": "topic", "name": "compaction.outcomes", "operations": ["Describe"], "prefix": False},
        ],
    }


def test_a_kafka_user_of_strimzis(run: Run) -> None:
    words = ["topics", "acls", "--role", "reader", "--principal", "User:pager", "--strimzi", "main", "--group", "pagers"]
    findings = {"type": "topic", "name": "compaction.findings", "patternType": "literal"}
    group = {"type": "group", "name": "pagers", "patternType": "literal"}
    assert run(*words).document == {
        "apiVersion": "kafka.strimzi.io/v1",
        "kind": "KafkaUser",
        "metadata": {"name": "pager", "labels": {"strimzi.io/cluster": "main"}},
        "spec": {
            "authentication": {"type": "scram-sha-512"},
            "authorization": {
                "type": "simple",
                "acls": [
                    {"resource": findings, "operations": ["Describe", "Read"], "host": "*"},
                    {"resource": group, "operations": ["Read"], "host": "*"},
                ],
            },
        },
    }


@pytest.mark.parametrize(
    "more", [["--principal", "coder"], ["--principal", "User:"], ["--principal", "User:A b", "--strimzi", "c"]]
)
def test_a_principal_that_is_none_is_refused(more: list[str], run: Run) -> None:
    ran = run("topics", "acls", "--role", "agent", *more)
    assert (ran.code, ran.out) == (Code.usage, "")
    assert f"--principal {more[1]}: allowed is " in ran.err


def test_topics_of_other_names_and_several_of_events(run: Run) -> None:
    own = ["--set", "app_id=mine", "--set", "events_topics=a,b", "--set", "outcomes_topic=c"]
    ran = run("topics", "acls", "--role", "monitor", "--principal", "User:m", *own)
    assert "--operation Describe --operation Read --topic a --topic b --topic c\n" in ran.out
    assert "--topic mine- --resource-pattern-type prefixed\n" in ran.out
    assert "--operation Read --group mine\n" in ran.out
    assert "--transactional-id mine- --resource-pattern-type prefixed\n" in ran.out
