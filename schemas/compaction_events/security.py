"""How a client shows a broker who it is, in one shape for agents, controllers, consumers and the monitor; and what to do
when the broker does not let it in.

```python
security = Security.of(os.environ)     # COMPACTION_MONITOR_SECURITY_PROTOCOL=SASL_SSL, …_USERNAME, …_PASSWORD, …_CAFILE
emitter = Emitter("kafka:9093", agent="coder", security=security)
```
"""  # noqa: D205 - one sentence

from __future__ import annotations

import asyncio
import re
import ssl
import tomllib
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator

from compaction_events.errors import AccessError

PREFIX = "COMPACTION_MONITOR_"
PROBE_S = 5.0
# What an answer begins with that is a TLS alert, read as the length of a Kafka response.
_TLS_ALERT = range(0x15030000, 0x15040000)


class Security(BaseModel):
    """What a client shows: a password (SASL), a certificate (mTLS), or nothing. Never shown itself.

    Raises:
        ValueError: What belongs together is not there together, or a file is missing.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field("SCRAM-SHA-512", description="With SASL only.")
    username: str | None = None
    password: SecretStr | None = None
    cafile: Path | None = Field(None, description="Who may have signed the brokers' certificates; None: the system's CAs.")
    certfile: Path | None = Field(None, description="The client's own certificate, for mTLS.")
    keyfile: Path | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.security_protocol.startswith("SASL") and not (self.username and self.password):
            raise ValueError(f"security_protocol {self.security_protocol} needs username and password")
        if bool(self.certfile) != bool(self.keyfile):
            raise ValueError("certfile and keyfile go together")
        needless = [name for name in ("cafile", "certfile") if getattr(self, name)]
        if needless and not self.security_protocol.endswith("SSL"):
            allowed = "allowed: SSL, SASL_SSL"
            raise ValueError(f"{needless[0]} is of no use with security_protocol {self.security_protocol}; {allowed}")
        if self.password and not self.security_protocol.startswith("SASL"):
            raise ValueError(f"a password is of no use with security_protocol {self.security_protocol}; allowed: SASL_SSL")
        for name in ("cafile", "certfile", "keyfile"):
            path: Path | None = getattr(self, name)
            if path is not None and not path.is_file():
                raise ValueError(f"{name}: no such file: {path}")
        return self

    @classmethod
    def of(cls, variables: Mapping[str, str]) -> Self:
        """From the environment, say: the worker's variables, `COMPACTION_MONITOR_SECURITY_PROTOCOL` and so on.

        Raises:
            ValueError: One is wrong.
        """
        named = {name: f"{PREFIX}{name.upper()}" for name in cls.model_fields}
        return cls._checked({name: variables[variable] for name, variable in named.items() if variable in variables})

    @classmethod
    def read(cls, path: Path) -> Self:
        """From a TOML file with these fields.

        Raises:
            OSError, ValueError: There is no such file, or something in it is wrong.
        """
        return cls._checked(tomllib.loads(path.read_text(encoding="utf-8")))

    @classmethod
    def _checked(cls, fields: Mapping[str, Any]) -> Self:
        try:
            return cls.model_validate(dict(fields))
        except ValidationError as error:
            faults = [
                (".".join(map(str, fault["loc"])), fault["msg"].removeprefix("Value error, ")) for fault in error.errors()
            ]
        # Of pydantic's text only what is allowed: what was given may be the password.
        raise ValueError("; ".join(f"{name}: {text}" if name else text for name, text in faults))

    def ssl_context(self) -> ssl.SSLContext | None:
        """The TLS context, None where the protocol has no TLS.

        Raises:
            ValueError: A certificate or key cannot be used.
        """
        if not self.security_protocol.endswith("SSL"):
            return None
        try:
            context = ssl.create_default_context(cafile=self.cafile)
            if self.certfile:
                context.load_cert_chain(self.certfile, self.keyfile, no_passphrase)
        except (OSError, ssl.SSLError) as error:
            files = [str(path) for path in (self.cafile, self.certfile, self.keyfile) if path]
            raise ValueError(f"cafile, certfile or keyfile: {files}: {error}") from None
        return context

    def client_security(self) -> dict[str, Any]:
        """The arguments with which any aiokafka client shows it."""
        options: dict[str, Any] = {"security_protocol": self.security_protocol, "ssl_context": self.ssl_context()}
        if self.security_protocol.startswith("SASL") and self.password is not None:
            options["sasl_mechanism"] = self.sasl_mechanism
            options["sasl_plain_username"] = self.username
            options["sasl_plain_password"] = self.password.get_secret_value()
        return options


def secured(kafka: Mapping[str, Any], security: Security | None) -> dict[str, Any]:
    """A client's arguments with what it shows among them."""
    return {**kafka, **(security.client_security() if security is not None else {})}


def no_passphrase() -> str:
    """For `load_cert_chain`, which would ask the terminal, and wait."""
    raise ValueError("the key is encrypted; allowed: a key without passphrase, in a file that only this user can read")


@asynccontextmanager
async def let_in(options: Mapping[str, Any]) -> AsyncIterator[None]:
    """Around the start of a client: what keeps it out is raised in words.

    Args:
        options: The client's arguments, `bootstrap_servers` among them.

    Raises:
        AccessError: The broker does not let it in, or does not let it do this.
        KafkaError: Anything else, no broker that answers for one.
    """
    from aiokafka.errors import KafkaConnectionError, KafkaError

    try:
        yield
    except KafkaConnectionError as error:
        # It says only that nobody could be asked: the reason was in a log line of the client library.
        kept_out = await why_kept_out(options)
        if kept_out is None:
            raise
        raise kept_out from error
    except KafkaError as error:
        denied = why_denied(error)
        if denied is None:
            raise
        raise denied from error


def why_denied(error: BaseException) -> AccessError | None:
    """What a broker's answer means that knows the client but does not let it do this; None for any other error."""
    from aiokafka import errors

    kinds = {
        errors.TopicAuthorizationFailedError: "the topic",
        errors.GroupAuthorizationFailedError: "the group",
        errors.TransactionalIdAuthorizationFailed: "the transactional id",
        # What an idempotent producer is told at its very first step.
        errors.ClusterAuthorizationFailedError: "to write, to any topic at all",
    }
    for kind, what in kinds.items():
        if isinstance(error, kind):
            named = re.sub(r"^\[Error \d+\] \w+:? ?", "", str(error))
            return AccessError(
                f"The broker does not allow it: {what} {named}".rstrip(),
                "Grant the role's rights: compaction-monitor topics acls --role ROLE --principal User:NAME",
            )
    return None


async def why_kept_out(options: Mapping[str, Any]) -> AccessError | None:
    """Knock at each broker, as a client with these arguments does, and tell why it is not let in; None: nobody answers.

    Bounded: `PROBE_S` for each broker.
    """
    from aiokafka.conn import create_conn
    from aiokafka.protocol.metadata import MetadataRequest

    servers = options["bootstrap_servers"]
    shown = {name: options[name] for name in options if name.startswith(("sasl_", "security_", "ssl_"))}
    for server in servers.split(",") if isinstance(servers, str) else servers:
        host, _, port = server.strip().rpartition(":")
        connection = None
        try:
            async with asyncio.timeout(PROBE_S):
                connection = await create_conn(host.strip("[]"), int(port), request_timeout_ms=int(PROBE_S * 1000), **shown)
                await connection.send(MetadataRequest([]))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is looked at
            if why := _meaning(error, shown, known=connection is not None):
                return AccessError(f"The broker {server} does not let this client in: {why[0]}", why[1])
        finally:
            if connection is not None:
                connection.close()
    return None


def _meaning(error: BaseException, shown: Mapping[str, Any], *, known: bool) -> tuple[str, str] | None:
    """What is wrong, and what to do; None when nobody is there."""
    from aiokafka import errors

    protocol, user = shown.get("security_protocol", "PLAINTEXT"), shown.get("sasl_plain_username")
    causes = list(_chain(error))
    for cause in causes:
        if isinstance(cause, errors.SaslAuthenticationFailed):
            mechanism = shown.get("sasl_mechanism")
            return f"user {user!r} with this password ({mechanism})", "Check username, password and sasl_mechanism."
        if isinstance(cause, errors.UnsupportedSaslMechanismError):
            return f"it takes no {shown.get('sasl_mechanism')}", "Set sasl_mechanism to one that this listener has."
        if isinstance(cause, errors.IllegalSaslStateError):
            return "it asks for no password", "Set security_protocol to SSL or PLAINTEXT, or take the port of another listener."
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not to be trusted: {cause.verify_message}", "Set cafile to the CA of the brokers."
        if isinstance(cause, ssl.SSLError) and "CERTIFICATE" in (cause.reason or ""):
            return "it wants a certificate that it can trust", "Set certfile and keyfile, signed by a CA that the brokers know."
        if isinstance(cause, asyncio.IncompleteReadError) and not protocol.endswith("SSL"):
            if (cause.expected or 0) in _TLS_ALERT:
                return (
                    "it speaks TLS only",
                    f"Set security_protocol to {'SASL_SSL' if 'SASL' in protocol else 'SASL_SSL or SSL'}.",
                )
    if protocol.endswith("SSL") and any(isinstance(cause, ssl.SSLError | ConnectionResetError) for cause in causes):
        return "it does not speak TLS", "Take the port of a listener that does, or set security_protocol."
    if known and not protocol.startswith("SASL") and isinstance(error, errors.KafkaConnectionError):
        return "it asks who this is", "Set security_protocol to SASL_SSL, with username and password."
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
