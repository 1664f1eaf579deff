"""The worker as its pod is described: the container's arguments, variables and settings, and a root it cannot write to.

What Kubernetes does with the description, Linux does here: a mount namespace with everything read-only but the volumes, no
capabilities, no new privileges. The user is not changed, because another one need not be able to read this Python.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.brokers import Kafka
from tests.e2e.workers import WorkerProcess
from tests.natively import program
from tests.test_kubernetes import container, one

POD = "compaction-monitor-0"
WRITABLE = {"/var/lib/compaction-monitor", "/tmp"}
INSIDE = """\
mount --make-rprivate /
for folder in {writable}; do mount --bind $folder $folder; done
mount -o remount,bind,ro /
if touch {outside} 2>/dev/null; then echo 'the root can be written to'; exit 1; fi
exec setpriv --no-new-privs --bounding-set=-all --inh-caps=-all --ambient-caps=-all {command}
"""


class Pod(WorkerProcess):
    """The container of the StatefulSet of `overlays/dev`, its volumes below `folder`."""

    def __init__(self, broker: str, app_id: str, folder: Path) -> None:
        super().__init__(broker, app_id, folder)
        self.only = container(one("dev", "StatefulSet")["spec"]["template"])
        self.volumes = {mount["mountPath"]: folder / mount["name"] for mount in self.only["volumeMounts"]}
        for volume in self.volumes.values():
            volume.mkdir()
        (self.volumes["/run/secrets/compaction-monitor"] / "token").write_text("0123456789abcdef")
        (settings,) = [
            found["data"] for found in [one("dev", "ConfigMap", self._config_map())] if found["data"].keys() == {"monitor.toml"}
        ]
        text = settings["monitor.toml"].replace("kafka:9092", broker).replace("0.0.0.0", "127.0.0.1")
        text = text.replace("web_port = 6066", f"web_port = {self.port}")
        # Beside other tests on one broker, under names of its own.
        own = ("app_id", "events_topics", "outcomes_topic", "findings_topic", "dead_letters_topic")
        named = {name: self._environment[f"COMPACTION_MONITOR_{name.upper()}"] for name in own}
        text += "".join(f'{name} = "{value}"\n' for name, value in named.items())
        (self.volumes["/etc/compaction-monitor"] / "monitor.toml").write_text(self.here(text))

    def _config_map(self) -> str:
        volumes = one("dev", "StatefulSet")["spec"]["template"]["spec"]["volumes"]
        (name,) = [volume["configMap"]["name"] for volume in volumes if "configMap" in volume]
        return str(name)

    def here(self, text: str) -> str:
        """Paths of the container, as they are below the folder."""
        for path, volume in self.volumes.items():
            if path != "/tmp":
                text = text.replace(path, str(volume))
        return text

    def start(self, **settings: Any) -> None:
        """As `start` of the others, in a namespace of its own."""
        assert not settings
        ours = {name: value for name, value in os.environ.items() if not name.startswith("COMPACTION_")}
        given = {variable["name"]: self.here(variable.get("value", POD)) for variable in self.only["env"]}
        inside = INSIDE.format(
            writable=" ".join(shlex.quote(str(self.volumes[path])) for path in sorted(WRITABLE)),
            outside=shlex.quote(str(self.folder / "outside")),
            command=shlex.join([program("compaction-monitor"), *self.only["args"]]),
        )
        environment = ours | given | {"TMPDIR": str(self.volumes["/tmp"]), "PYTHONDONTWRITEBYTECODE": "1"}
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                ["unshare", "--mount", "sh", "-ec", inside],
                cwd=self.volumes["/var/lib/compaction-monitor"], env=environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip


@pytest.fixture
def pod(kafka_broker: Kafka, app_id: str, tmp_path: Path) -> Iterator[Pod]:
    if sys.platform != "linux" or os.geteuid() != 0 or not shutil.which("unshare"):
        assert "CI" not in os.environ
        pytest.skip("a mount namespace is for root, on Linux")
    made = Pod(kafka_broker.address, app_id, tmp_path)
    yield made
    made.kill()


async def test_a_pod_works_with_what_it_is_given(
    pod: Pod, kafka_broker: Kafka, app_id: str, eventually: Callable[..., Awaitable[Any]], make_topics: Callable[..., Any]
) -> None:
    assert {path for path, volume in pod.volumes.items() if not read_only(pod, path)} == WRITABLE
    await make_topics(kafka_broker, app_id)
    pod.start()

    async def ready() -> bool:
        assert pod.running(), pod.tail()
        return await pod.ready()

    await eventually(ready, 120, what="the pod ready")
    probes = [pod.only[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")]
    assert [(await pod.get(path))[0] for path in probes] == [200, 200, 200]
    assert (await pod.get("/metrics"))[0] == 401, "without the token"
    pod.signal(signal.SIGTERM)
    assert await pod.ended(15) == 0, pod.tail()
    assert (pod.volumes["/var/lib/compaction-monitor"] / app_id).is_dir()
    assert list(pod.volumes["/tmp"].iterdir()) == []


def read_only(pod: Pod, path: str) -> bool:
    return any(mount["mountPath"] == path and mount.get("readOnly", False) for mount in pod.only["volumeMounts"])
