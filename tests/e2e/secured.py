"""A real Kafka that lets in who it knows and lets them do what they may: SCRAM and client certificates over TLS, and ACLs.

Its third listener, without TLS, is for the test itself: whoever connects there is a super user.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import trustme
from cryptography.hazmat.primitives import serialization

from tests.e2e.brokers import VERSION, Kafka, KafkaUnavailableError, cache_dir, free_ports, jars

ROLES = ("operator", "agent", "monitor", "controller", "reader")
PASSWORD = "right-password-of-{}"
_LISTENERS = """
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller},SCRAM://127.0.0.1:{scram},MTLS://127.0.0.1:{mtls}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SCRAM://127.0.0.1:{scram},MTLS://127.0.0.1:{mtls}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SCRAM:SASL_SSL,MTLS:SSL
inter.broker.listener.name=PLAINTEXT
listener.name.scram.sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.scram.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.mtls.ssl.client.auth=required
listener.name.mtls.ssl.principal.mapping.rules=RULE:^.*CN=([^,]*).*$/$1/
ssl.keystore.type=PEM
ssl.keystore.location={folder}/broker.pem
ssl.truststore.type=PEM
ssl.truststore.location={folder}/ca.pem
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
"""


class SecuredKafka(Kafka):
    """`Kafka` with a CA, an account for each role, and the listeners `scram` and `mtls`; at `address` everything is allowed."""

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(folder, **options)
        scram, mtls = free_ports(2)
        self.scram, self.mtls = f"127.0.0.1:{scram}", f"127.0.0.1:{mtls}"
        self._ports = {"scram": scram, "mtls": mtls}
        self.ca = trustme.CA()
        self.cafile = folder / "ca.pem"
        self.ca.cert_pem.write_to_path(self.cafile)
        key_and_certificate(self.ca, folder / "broker.pem", "127.0.0.1")

    def _properties(self, data: Path) -> str:
        kept = [line for line in super()._properties(data).splitlines() if "listeners=" not in line]
        own = _LISTENERS.format(port=self._port, controller=self._controller, folder=self.folder.as_posix(), **self._ports)
        return "\n".join(kept) + own

    def _format_options(self) -> list[str]:
        accounts = [f"SCRAM-SHA-512=[name={role},password={PASSWORD.format(role)}]" for role in ROLES]
        return [word for account in accounts for word in ("--add-scram", account)]

    def by_password(self, role: str, **changed: Any) -> dict[str, Any]:
        """Settings of a client that shows the role's password."""
        return {
            "brokers": self.scram, "security_protocol": "SASL_SSL", "sasl_mechanism": "SCRAM-SHA-512", "username": role,
            "password": PASSWORD.format(role), "cafile": str(self.cafile),
        } | changed  # fmt: skip

    def by_certificate(self, role: str, *, of: trustme.CA | None = None) -> dict[str, Any]:
        """Settings of a client that shows the role's certificate; `of`: signed by another CA."""
        both = self.folder / f"{role}-{'own' if of is None else id(of)}.pem"
        if not both.exists():
            key_and_certificate(of or self.ca, both, common_name=role)
        own = {"certfile": str(both), "keyfile": str(both)}
        return {"brokers": self.mtls, "security_protocol": "SSL", "cafile": str(self.cafile), **own}

    def run(self, command: str) -> str:
        """Run one `kafka-acls.sh …` line as its script would, as a super user."""
        program, *words = shlex.split(command)
        assert program == "kafka-acls.sh"
        classpath = f"{jars()}/*:{_tools()}/*"
        java = [*self._java()[:-1], classpath, "org.apache.kafka.tools.AclCommand"]
        done = subprocess.run([*java, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def key_and_certificate(ca: trustme.CA, path: Path, *names: str, common_name: str | None = None) -> None:
    """Write one PEM file as both Java and Python read it: the key in PKCS 8, then the chain."""
    issued = ca.issue_cert(*(names or ("client.example",)), common_name=common_name)
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), password=None)
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(pem + b"".join(blob.bytes() for blob in issued.cert_chain_pems))


def _tools() -> Path:
    """The folder with the jar of `kafka-acls.sh`, fetched once."""
    folder = cache_dir() / f"kafka-tools-{VERSION}"
    if not list(folder.glob("*.jar")):
        maven = shutil.which("mvn")
        if maven is None:
            raise KafkaUnavailableError("kafka-acls.sh is not cached, and there is no Maven (mvn) to fetch it")
        artifact = f"-Dartifact=org.apache.kafka:kafka-tools:{VERSION}"
        command = [maven, "-q", "-B", "dependency:copy", artifact, f"-DoutputDirectory={folder}"]
        fetched = subprocess.run(command, capture_output=True, text=True, check=False)
        if fetched.returncode != 0:
            raise KafkaUnavailableError(f"Maven could not fetch kafka-acls.sh: {(fetched.stdout + fetched.stderr)[-500:]}")
    return folder
