"""Writes the manifests that say again what another file says: `python deploy/k8s/generate.py`. A test holds them equal.

The custom resources of the Prometheus operator and of Strimzi cannot include a file, so the rules, the topics and who
may do what with them are copied into them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from compaction_monitor.shell import acls, topics
from compaction_monitor.shell.settings import Settings

FOLDER = Path(__file__).parent
RULES = FOLDER.parent / "prometheus" / "rules"
# Strimzi's resources are for the cluster that this overlay's workers use.
PROD = FOLDER / "overlays" / "prod" / "monitor.toml"
CLUSTER = "kafka"
COPIES = 3
HEAD = "# Written by deploy/k8s/generate.py; change what it reads instead.\n"


def topics_of(settings: Settings) -> Iterator[dict[str, Any]]:
    """A KafkaTopic for each topic that `topics plan` wants."""
    wanted = topics.expected(
        app_id=settings.app_id,
        events=settings.events_topics,
        outcomes=settings.outcomes_topic,
        findings=settings.findings_topic,
        dead_letters=settings.dead_letters_topic,
        partitions=settings.partitions,
        replication_factor=COPIES,
    )
    for topic in wanted:
        spec = {"partitions": topic.partitions, "replicas": topic.replication_factor, "config": dict(topic.config)}
        metadata = {"name": topic.name, "labels": {"strimzi.io/cluster": CLUSTER}}
        yield {"apiVersion": "kafka.strimzi.io/v1", "kind": "KafkaTopic", "metadata": metadata, "spec": spec}


def users_of(settings: Settings) -> Iterator[dict[str, Any]]:
    """A KafkaUser for each role, with the rights that `topics acls` prints."""
    for role in acls.Role:
        user = acls.kafka_user(acls.rights(role, settings), f"compaction-{role}", CLUSTER)
        # By certificate instead of by password: a file that is mounted, and no variable.
        user["spec"]["authentication"]["type"] = "tls"
        yield user


def rules_of(folder: Path) -> dict[str, Any]:
    """A PrometheusRule with every group of the rule files."""
    groups = [group for path in sorted(folder.glob("*.yaml")) for group in yaml.safe_load(path.read_text("utf-8"))["groups"]]
    labels = {f"app.kubernetes.io/{key}": "compaction-monitor" for key in ("name", "part-of")}
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "compaction-monitor", "labels": labels},
        "spec": {"groups": groups},
    }


def settings_of(path: Path) -> Settings:
    """The settings of an overlay as far as topics go; its certificates are not on this machine."""
    given = tomllib.loads(path.read_text(encoding="utf-8"))
    names = {"app_id", "events_topics", "outcomes_topic", "findings_topic", "dead_letters_topic", "partitions"}
    return Settings.model_validate({name: value for name, value in given.items() if name in names})


class _Dumper(yaml.SafeDumper):
    """Expressions of several lines stay readable."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)


_Dumper.add_representer(str, _Dumper.represent_str)


def text(documents: Iterable[dict[str, Any]]) -> str:
    return HEAD + "---\n".join(yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=128) for document in documents)


def manifests() -> dict[Path, str]:
    """Every generated file and what belongs in it."""
    settings = settings_of(PROD)
    return {
        FOLDER / "components/operator/rules.yaml": text([rules_of(RULES)]),
        FOLDER / "components/strimzi/topics.yaml": text(topics_of(settings)),
        FOLDER / "components/strimzi/users.yaml": text(users_of(settings)),
    }


if __name__ == "__main__":
    for path, content in manifests().items():
        path.write_text(content, encoding="utf-8")
