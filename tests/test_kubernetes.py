"""deploy/k8s as Kubernetes would get it: overlays rendered, every object validated, what one says held against the other."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from compaction_monitor.cli.topics import wanted as planned
from compaction_monitor.shell import acls
from compaction_monitor.shell.settings import Settings
from compaction_monitor.shell.topics import Topic
from compaction_monitor.shell.web import Access
from deploy.k8s import generate
from tests.natively import ROOT, composed, program
from tests.test_compose import PINNED

K8S = ROOT / "deploy" / "k8s"
SCHEMAS = Path(__file__).parent / "kubernetes"
OVERLAYS = ("dev", "prod")
# The oldest release that knows every field, and the newest that there are schemas of.
RELEASES = ("1.31", "1.37")
# Secrets that are there before: made by hand (base/kustomization.yaml), and by Strimzi.
SECRETS = {
    "dev": {"compaction-monitor-web"},
    "prod": {"compaction-monitor-web", "kafka-cluster-ca-cert", "compaction-monitor", "compaction-reader"},
}
PREFIX = "COMPACTION_MONITOR_"
Document = dict[str, Any]

each_overlay = pytest.mark.parametrize("overlay", OVERLAYS)


def kustomize(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program("kubectl"), "kustomize", str(folder)], capture_output=True, text=True, check=False)


@cache
def rendered(overlay: str) -> tuple[Document, ...]:
    built = kustomize(K8S / "overlays" / overlay)
    assert (built.returncode, built.stderr) == (0, "")
    return tuple(yaml.safe_load_all(built.stdout))


def of(overlay: str, kind: str) -> list[Document]:
    return [document for document in rendered(overlay) if document["kind"] == kind]


def one(overlay: str, kind: str, name: str = "compaction-monitor") -> Document:
    (found,) = [document for document in of(overlay, kind) if document["metadata"]["name"] == name]
    return found


def templates(overlay: str) -> Iterator[tuple[str, Document]]:
    """Every pod there will be: (kind/name, its template)."""
    for document in rendered(overlay):
        if template := document.get("spec", {}).get("template"):
            yield f"{document['kind']}/{document['metadata']['name']}", template


def pods() -> Iterator[Any]:
    for overlay in OVERLAYS:
        for name, template in templates(overlay):
            yield pytest.param(overlay, template, id=f"{overlay}-{name}")


each_pod = pytest.mark.parametrize(("overlay", "template"), list(pods()))


def ours(template: Document) -> bool:
    return bool(container(template)["image"].startswith("compaction-monitor:"))


def container(template: Document) -> Document:
    (only,) = template["spec"]["containers"]
    assert isinstance(only, dict)
    return only


def lasts(template: Document) -> bool:
    return bool(template["spec"].get("restartPolicy", "Always") == "Always")


def validate(document: Document, release: str) -> None:
    """Core kinds by Kubernetes' own schemas, strictly; custom resources by ours."""
    schema = SCHEMAS / f"{document['kind']}.json"
    if schema.exists():
        jsonschema.Draft202012Validator(json.loads(schema.read_text())).validate(document)
    else:
        assert kubernetes_validate.validate(document, release, strict=True) == release


@each_overlay
@pytest.mark.parametrize("release", RELEASES)
def test_every_object_is_valid(overlay: str, release: str) -> None:
    for document in rendered(overlay):
        validate(document, release)


KINDS = ("StatefulSet", "NetworkPolicy", "KafkaTopic", "KafkaUser", "ServiceMonitor", "PrometheusRule")


@pytest.mark.parametrize("kind", KINDS)
def test_a_mistyped_field_would_be_seen(kind: str) -> None:
    wrong = json.loads(json.dumps(of("prod", kind)[0]))
    wrong["spec"]["mistyped"] = 1
    with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError), match="mistyped"):
        validate(wrong, RELEASES[0])


@each_overlay
def test_no_object_is_there_twice_or_outside_the_namespace(overlay: str) -> None:
    found = [(document["kind"], document["metadata"]["name"]) for document in rendered(overlay)]
    assert len(set(found)) == len(found)
    (namespace,) = {document["metadata"].get("namespace") for document in rendered(overlay) if document["kind"] != "Namespace"}
    assert namespace is not None
    assert {document["metadata"]["name"] for document in of(overlay, "Namespace")} <= {namespace}


@each_pod
def test_a_pod_may_do_nothing_it_does_not_need(overlay: str, template: Document) -> None:
    spec, only = template["spec"], container(template)
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert min(spec["securityContext"]["runAsUser"], spec["securityContext"]["runAsGroup"]) > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert only["securityContext"]["allowPrivilegeEscalation"] is False
    assert only["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    # Kafka's image writes its configuration where it is installed.
    assert only["securityContext"].get("readOnlyRootFilesystem", False) is ours(template)


@each_pod
def test_a_pods_image_is_pinned_and_its_needs_are_said(overlay: str, template: Document) -> None:
    only = container(template)
    assert PINNED.match(only["image"])
    assert {"cpu", "memory"} <= set(only["resources"]["requests"])
    # A throttled worker is fenced as if it had been paused.
    assert "memory" in only["resources"]["limits"]
    assert "cpu" not in only["resources"]["limits"]


@each_pod
def test_no_pod_gets_variables_from_services(overlay: str, template: Document) -> None:
    """Kubernetes would set COMPACTION_MONITOR_PORT, which the worker refuses, and KAFKA_PORT, which Kafka's image believes."""
    assert template["spec"]["enableServiceLinks"] is False


@each_pod
def test_what_lasts_is_probed(overlay: str, template: Document) -> None:
    probes = {name: container(template).get(f"{name}Probe", {}) for name in ("startup", "liveness", "readiness")}
    assert all(probes.values()) is lasts(template)
    if lasts(template) and ours(template):
        paths = {name: probe["httpGet"]["path"] for name, probe in probes.items()}
        # Recovery takes as long as it takes: a worker that is not ready is never ended for that.
        assert paths == {"startup": "/live", "liveness": "/live", "readiness": "/ready"}
        assert {probe["httpGet"]["port"] for probe in probes.values()} == {"web"}
        assert [port["name"] for port in container(template)["ports"]] == ["web"]


@each_pod
def test_what_a_pod_mounts_is_there(overlay: str, template: Document) -> None:
    spec = template["spec"]
    volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
    claims = {
        claim["metadata"]["name"]
        for document in of(overlay, "StatefulSet")
        if document["spec"]["template"] is template
        for claim in document["spec"]["volumeClaimTemplates"]
    }
    assert {mount["name"] for mount in container(template)["volumeMounts"]} == set(volumes) | claims
    named = {volume["configMap"]["name"] for volume in volumes.values() if "configMap" in volume}
    assert named <= {document["metadata"]["name"] for document in of(overlay, "ConfigMap")}
    secrets = {volume["secret"]["secretName"] for volume in volumes.values() if "secret" in volume}
    assert secrets <= SECRETS[overlay]
    assert of(overlay, "Secret") == []
    accounts = {document["metadata"]["name"] for document in of(overlay, "ServiceAccount")}
    assert spec.get("serviceAccountName", "default") in {"default", *accounts}


@each_overlay
def test_every_secret_that_has_to_be_there_is_mounted(overlay: str) -> None:
    mounted = {
        volume["secret"]["secretName"]
        for _, template in templates(overlay)
        for volume in template["spec"].get("volumes", [])
        if "secret" in volume
    }
    assert mounted == SECRETS[overlay]


@each_overlay
def test_names_lead_to_the_pods_they_mean(overlay: str) -> None:
    labels = {name: template["metadata"]["labels"] for name, template in templates(overlay)}

    def meant(selector: Document) -> set[str]:
        return {name for name, found in labels.items() if selector.items() <= found.items()}

    worker, bridge = "StatefulSet/compaction-monitor", "Deployment/compaction-bridge"
    assert meant(one(overlay, "Service")["spec"]["selector"]) == {worker}
    assert meant(one(overlay, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"]) == {worker}
    assert meant(one(overlay, "StatefulSet")["spec"]["selector"]["matchLabels"]) == {worker}
    assert meant(one(overlay, "Deployment", "compaction-bridge")["spec"]["selector"]["matchLabels"]) == {bridge}
    policies = {
        document["metadata"]["name"]: document["spec"]["podSelector"]["matchLabels"]
        for document in of(overlay, "NetworkPolicy")
    }
    ours_only = {name for name, template in templates(overlay) if ours(template)}
    assert {name: meant(selector) for name, selector in policies.items()} == {
        "compaction-monitor": ours_only,
        "compaction-bridge": {bridge},
    }


@each_overlay
def test_a_policy_says_both_directions_and_opens_no_port_twice(overlay: str) -> None:
    policy = one(overlay, "NetworkPolicy")["spec"]
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    assert [port["port"] for rule in policy["ingress"] for port in rule["ports"]] == ["web"]
    assert all(rule["from"] for rule in policy["ingress"])
    ports = {port["port"] for rule in policy["egress"] for port in rule["ports"]}
    brokers = {
        int(broker.rpartition(":")[2])
        for broker in settings_of(overlay, one(overlay, "StatefulSet")["spec"]["template"]).brokers
    }
    assert brokers <= ports <= {53, 9092, 9093}


@each_overlay
def test_names_are_answered_by_the_cluster_or_by_the_nodes_cache(overlay: str) -> None:
    (names,) = [rule for rule in one(overlay, "NetworkPolicy")["spec"]["egress"] if rule["ports"][0]["port"] == 53]
    assert names["to"] == [
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
            "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
        },
        {"ipBlock": {"cidr": "169.254.20.10/32"}},
    ]


def test_what_can_be_uncommented_is_right(tmp_path: Path) -> None:
    """Everything at once at the end of the overlay for production."""
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    file = tmp_path / "deploy" / "k8s" / "overlays" / "prod" / "kustomization.yaml"
    as_it_is, to_uncomment = file.read_text(encoding="utf-8").split("  # Uncomment what is so with you.")
    uncommented = re.sub(r"^  # (- | )", r"  \1", to_uncomment, flags=re.MULTILINE)
    file.write_text(f"{as_it_is}  # {uncommented}", encoding="utf-8")
    built = kustomize(file.parent)
    assert (built.returncode, built.stderr) == (0, "")
    objects = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(built.stdout)}
    for each in objects.values():
        validate(each, RELEASES[0])
    egress = objects["NetworkPolicy", "compaction-monitor"]["spec"]["egress"]
    assert [[port["port"] for port in rule["ports"]] for rule in egress] == [[53, 53], [9093], [5353, 5353], [4318]]
    watched = [objects[kind, "compaction-monitor"]["metadata"]["labels"] for kind in ("ServiceMonitor", "PrometheusRule")]
    assert [labels["release"] for labels in watched] == ["kube-prometheus-stack"] * 2


def settings_of(overlay: str, template: Document, made: Path | None = None) -> Settings:
    """The settings of a container as it would read them; a file that a secret brings is one in `made`."""
    only = container(template)
    mounts = {mount["mountPath"]: mount["name"] for mount in only["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
    variables = {variable["name"]: variable.get("value") for variable in only["env"]}
    config = Path(variables.pop(f"{PREFIX}CONFIG"))
    name = volumes[mounts[str(config.parent)]]["configMap"]["name"]
    given = tomllib.loads(one(overlay, "ConfigMap", name)["data"][config.name])
    for field in ("cafile", "certfile", "keyfile", "web_token_file"):
        if field not in given:
            continue
        path = Path(given[field])
        if str(path.parent) in mounts:
            assert path.name in keys(volumes[mounts[str(path.parent)]]["secret"])
        else:
            # Only the worker serves metrics; the file of another need not exist there.
            assert (field, "worker" in only["args"]) == ("web_token_file", False)
        if made is None:
            given.pop(field)
        else:
            (made / path.name).write_text("0" * 64)
            given[field] = made / path.name
    if made is None:
        given.pop("security_protocol", None)
    given |= {variable.removeprefix(PREFIX).lower(): value for variable, value in variables.items() if value is not None}
    return Settings.model_validate(given)


def keys(secret: Document) -> set[str]:
    """What of a secret is mounted; without items all, and ours by hand has one."""
    return {item["path"] for item in secret.get("items", [{"path": "token"}])}


@each_pod
def test_the_settings_are_settings(overlay: str, template: Document, tmp_path: Path) -> None:
    if not ours(template):
        return
    settings = settings_of(overlay, template, tmp_path)
    if "worker" in container(template)["args"]:
        assert Access.of(settings).tls is None
        assert settings.web_port == container(template)["ports"][0]["containerPort"]
        assert str(settings.datadir) in {
            mount["mountPath"] for mount in container(template)["volumeMounts"] if mount["name"] == "state"
        }
    assert settings.web_host == "0.0.0.0"


@each_overlay
def test_each_worker_is_named_by_its_pod_and_has_a_volume_of_its_own(overlay: str) -> None:
    spec = one(overlay, "StatefulSet")["spec"]
    (name,) = [variable for variable in container(spec["template"])["env"] if variable["name"] == f"{PREFIX}WORKER"]
    assert name["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    assert [claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]] == ["state"]
    assert spec["replicas"] <= settings_of(overlay, spec["template"]).partitions
    settings = Settings()
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] > settings.shutdown_timeout_s


@each_overlay
def test_a_worker_that_recovers_can_be_scraped(overlay: str) -> None:
    assert one(overlay, "Service")["spec"]["publishNotReadyAddresses"] is True


def test_prometheus_finds_the_workers_and_shows_the_token() -> None:
    spec = one("prod", "ServiceMonitor")["spec"]
    service = one("prod", "Service")
    assert spec["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (endpoint,) = spec["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    credentials = endpoint["authorization"]["credentials"]
    assert credentials == {"name": "compaction-monitor-web", "key": "token"}


def test_prometheus_is_told_the_same_as_that_of_compose() -> None:
    spec, (endpoint,) = one("prod", "ServiceMonitor")["spec"], one("prod", "ServiceMonitor")["spec"]["endpoints"]
    config = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    (scraped,) = [job for job in config["scrape_configs"] if job["job_name"] == "compaction-monitor"]
    # The operator calls a job as the service.
    assert one("prod", "Service")["metadata"]["name"] == scraped["job_name"]
    limits = {"sample_limit": "sampleLimit", "label_limit": "labelLimit", "label_value_length_limit": "labelValueLengthLimit"}
    assert {name: spec[there] for name, there in limits.items()} == {name: scraped[name] for name in limits}
    assert endpoint["interval"] == config["global"]["scrape_interval"]


def test_the_rules_are_those_of_the_rule_files() -> None:
    files = sorted((ROOT / "deploy" / "prometheus" / "rules").iterdir())
    assert {path.suffix for path in files} == {".yaml"}
    groups = [group for path in files for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]]
    assert one("prod", "PrometheusRule")["spec"] == {"groups": groups}


def test_the_copies_are_what_they_are_copies_of() -> None:
    for path, text in generate.manifests().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run python deploy/k8s/generate.py"


def test_each_role_is_a_user_and_a_pod_shows_the_certificate_of_its_own() -> None:
    users = {user["metadata"]["name"]: user["spec"] for user in of("prod", "KafkaUser")}
    settings = generate.settings_of(generate.PROD)
    assert users == {
        f"compaction-{role}": {
            "authentication": {"type": "tls"},
            "authorization": acls.kafka_user(acls.rights(role, settings), "", "")["spec"]["authorization"],
        }
        for role in acls.Role
    }
    shown = {
        name: volume["secret"]["secretName"]
        for name, template in templates("prod")
        for volume in template["spec"]["volumes"]
        if volume["name"] == "kafka-user"
    }
    assert shown == {
        "StatefulSet/compaction-monitor": "compaction-monitor",
        "Deployment/compaction-bridge": "compaction-reader",
    }


def test_the_topics_are_those_of_the_plan() -> None:
    settings = generate.settings_of(generate.PROD)
    found = [
        Topic(topic["metadata"]["name"], topic["spec"]["partitions"], topic["spec"]["replicas"], topic["spec"]["config"])
        for topic in of("prod", "KafkaTopic")
    ]
    wanted = {topic.name: topic for topic in planned(settings, replication_factor=generate.COPIES)}
    assert {topic.name: topic for topic in found} == wanted
    assert len(found) == len(wanted)
    assert settings.partitions == settings_of("prod", one("prod", "StatefulSet")["spec"]["template"]).partitions


def test_the_broker_of_dev_is_set_as_that_of_compose() -> None:
    compose = composed()["services"]["kafka"]["environment"]
    (only,) = one("dev", "StatefulSet", "kafka")["spec"]["template"]["spec"]["containers"]
    here = {variable["name"]: variable["value"] for variable in only["env"]}
    own = {name for name in compose if here.get(name) != compose[name]}
    assert here.keys() == compose.keys()
    assert own == {"KAFKA_LISTENERS", "KAFKA_ADVERTISED_LISTENERS", "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP", "KAFKA_LOG_DIRS"}
    assert only["image"] == composed()["services"]["kafka"]["image"]


def test_every_dashboard_is_a_config_map_for_grafanas_sidecar() -> None:
    folder = ROOT / "deploy" / "grafana" / "dashboards"
    maps = [found for found in of("prod", "ConfigMap") if found["metadata"]["labels"].get("grafana_dashboard") == "1"]
    assert {name: text for found in maps for name, text in found["data"].items()} == {
        path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.json")
    }
    # Kubernetes takes no object over a mebibyte.
    assert all(len(json.dumps(found)) < 1_000_000 for found in maps)
