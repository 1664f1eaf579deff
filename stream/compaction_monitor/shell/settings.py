"""Every setting of the worker, and the only module that reads the environment.

Sources, strongest first: arguments, `COMPACTION_MONITOR_*` variables, the TOML file named by
`COMPACTION_MONITOR_CONFIG`, the defaults below. Anything wrong is a `SettingsError` that says which variable,
which value and what is allowed: the operator's fault, found at start (exit 78).
"""

from __future__ import annotations

import os
import socket
import ssl
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

# `as`: it is also a name of this module.
from compaction_events.security import PREFIX as PREFIX
from compaction_events.security import Security

CONFIG_VARIABLE = f"{PREFIX}CONFIG"
TOPIC_NAME = r"^[a-zA-Z0-9._-]{1,249}$"
Topic = Annotated[str, Field(pattern=TOPIC_NAME)]
# `NoDecode`: the variable is a plain comma-separated list, not JSON.
Names = Annotated[tuple[str, ...], NoDecode]


# Named in errors, but never shown.
SECRETS = frozenset({"password", "web_token"})


class SettingsError(ValueError):
    """A setting is wrong: names the variable, its value and what is allowed. Never retried (exit 78)."""


class Settings(BaseSettings, Security):
    """The worker's settings. Times carry their unit in the name; every field is a `COMPACTION_MONITOR_` variable.

    How it shows the brokers who it is, is in `Security`, as for every other client.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True, hide_input_in_errors=True)

    brokers: Names = Field(("127.0.0.1:9092",), description="Bootstrap servers, HOST:PORT, comma-separated.")
    app_id: str = Field("compaction-monitor", pattern=r"^[a-zA-Z0-9._-]{1,100}$")
    worker: str = Field(
        default_factory=socket.gethostname,
        pattern=r"^[a-zA-Z0-9._-]{1,200}$",
        description="Stable name of this worker: its static group membership. Two running workers must not share one.",
    )
    datadir: Path = Field(Path("compaction-monitor-data"), description="Local state; a cache of the changelogs.")
    store: Literal["rocksdict", "memory"] = "rocksdict"
    store_cache_mb: int = Field(64, ge=8, le=65536, description="One block cache for all partitions of this worker.")
    checks_file: Path | None = Field(None, description="TOML file with thresholds per agent pattern.")

    events_topics: Annotated[tuple[Topic, ...], NoDecode] = Field(("compaction.events",), min_length=1)
    outcomes_topic: Topic = "compaction.outcomes"
    findings_topic: Topic = "compaction.findings"
    dead_letters_topic: Topic = "compaction.dead-letters"
    partitions: int = Field(8, ge=1, le=1024, description="Of every topic; never changed later.")
    accept_new_log: Names = Field((), description="Topics that were recreated on purpose: read from their start.")

    session_timeout_s: float = Field(10.0, ge=6.0, le=300.0, description="A silent worker is replaced after this.")
    request_timeout_s: float = Field(40.0, ge=5.0, le=300.0)
    transaction_timeout_s: float = Field(60.0, ge=10.0, le=900.0)
    stuck_timeout_s: float = Field(
        120.0,
        le=3600.0,
        description="Without progress for this long, though the brokers answer, the worker ends. Longer than a transaction "
        "may take (transaction_timeout_s), and a rebalance (twice session_timeout_s, at least 30).",
    )
    shutdown_timeout_s: float = Field(8.0, ge=1.0, le=60.0, description="SIGTERM to process ended, at most.")
    fetch_wait_ms: int = Field(100, ge=1, le=5000)
    fetch_max_bytes: int = Field(1 << 20, ge=1 << 16, le=1 << 26, description="Per partition and fetch.")
    tick_s: float = Field(1.0, ge=0.05, le=60.0)
    metrics_agents: Names = Field((), max_length=20, description="Agents that metrics name; every other one is `other`.")

    web_host: str = Field("127.0.0.1", description="Elsewhere than on loopback, /metrics needs a token or client certificates.")
    web_port: int = Field(6066, ge=0, le=65535, description="0 lets the system choose.")
    web_token_file: Path | None = Field(None, description="Its text is the bearer token of /metrics; read at every request.")
    web_token: SecretStr | None = Field(None, description="The token itself; a file is seen by fewer eyes.")
    web_certfile: Path | None = Field(None, description="The web server speaks TLS with this certificate.")
    web_keyfile: Path | None = None
    web_client_cafile: Path | None = Field(None, description="/metrics needs a client certificate of one of these CAs.")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments, then variables, then the file."""
        config = os.environ.get(CONFIG_VARIABLE)
        file = (TomlConfigSettingsSource(settings_cls, Path(config)),) if config else ()
        return (init_settings, env_settings, *file)

    @field_validator("brokers", "events_topics", "accept_new_log", "metrics_agents", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("brokers")
    @classmethod
    def _host_and_port(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for broker in value:
            host, _, port = broker.rpartition(":")
            if not host or not port.isdigit() or not 0 < int(port) < 65536:
                raise ValueError("each broker must be HOST:PORT")
        if not value:
            raise ValueError("at least one HOST:PORT")
        return value

    @model_validator(mode="after")
    def _belongs_together(self) -> Self:
        names = self.topics
        if len(set(names)) != len(names):
            raise ValueError("events_topics, outcomes_topic, findings_topic and dead_letters_topic must all differ")
        if unknown := set(self.accept_new_log) - set(self.input_topics):
            raise ValueError(f"accept_new_log: {sorted(unknown)} is no input topic; allowed: {list(self.input_topics)}")
        if bool(self.web_certfile) != bool(self.web_keyfile):
            raise ValueError("web_certfile and web_keyfile go together")
        if self.web_client_cafile and not self.web_certfile:
            raise ValueError("web_client_cafile needs web_certfile and web_keyfile: only TLS asks for client certificates")
        if self.web_token and self.web_token_file:
            raise ValueError("web_token and web_token_file: give one of them")
        if self.checks_file is not None and not self.checks_file.is_file():
            raise ValueError(f"checks_file: no such file: {self.checks_file}")
        if self.session_timeout_s > self.request_timeout_s:
            raise ValueError("session_timeout_s must not exceed request_timeout_s")
        if self.stuck_timeout_s <= (longest := max(self.rebalance_timeout_s, self.transaction_timeout_s)):
            raise ValueError(
                f"stuck_timeout_s must exceed transaction_timeout_s, and twice session_timeout_s or 30: here {longest:g}"
            )
        return self

    @property
    def rebalance_timeout_s(self) -> float:
        """How long the group waits for its workers in a rebalance."""
        return max(self.session_timeout_s * 2, 30.0)

    @property
    def input_topics(self) -> tuple[str, ...]:
        """The topics that are consumed: events, then outcomes."""
        return (*self.events_topics, self.outcomes_topic)

    @property
    def topics(self) -> tuple[str, ...]:
        """Every topic but the changelogs."""
        return (*self.input_topics, self.findings_topic, self.dead_letters_topic)

    def ssl_context(self) -> ssl.SSLContext | None:
        """The TLS context, None where the protocol has no TLS.

        Raises:
            SettingsError: A certificate or key cannot be read.
        """
        try:
            return super().ssl_context()
        except ValueError as exc:
            raise SettingsError(str(exc)) from None

    def client_options(self) -> dict[str, Any]:
        """Keyword arguments that connect any aiokafka client to the brokers."""
        return {"bootstrap_servers": list(self.brokers), **self.client_security()}


def load(**overrides: Any) -> Settings:
    """Read the settings; `overrides` (a command line's options) win, those that are None count as absent.

    Raises:
        SettingsError: One or several settings are wrong; every one is named.
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    try:
        _check_names(os.environ)
        _check_config(os.environ.get(CONFIG_VARIABLE))
        return Settings(**given)
    except ValidationError as exc:
        # `from None`: pydantic's own text may show what was given.
        raise SettingsError("\n".join(_fault(error) for error in exc.errors())) from None
    except (OSError, tomllib.TOMLDecodeError) as exc:
        raise SettingsError(f"{CONFIG_VARIABLE}={os.environ.get(CONFIG_VARIABLE)}: {exc}") from exc


def _check_names(environ: Mapping[str, str]) -> None:
    """A mistyped variable would be ignored without a word."""
    known = {f"{PREFIX}{name}".upper() for name in Settings.model_fields} | {CONFIG_VARIABLE}
    unknown = sorted(name for name in environ if name.startswith(PREFIX) and name not in known)
    if unknown:
        raise SettingsError(f"{unknown[0]}: no such setting; known: {', '.join(sorted(known))}")


def _check_config(config: str | None) -> None:
    """A file that is named and missing would be ignored without a word."""
    if config is not None and not Path(config).is_file():
        raise SettingsError(f"{CONFIG_VARIABLE}={config!r}: no such file")


def _fault(error: Any) -> str:
    """One pydantic error as `VARIABLE=value: what is allowed`."""
    name = str(error["loc"][0]) if error["loc"] else ""
    message = str(error["msg"]).removeprefix("Value error, ")
    if not name:
        return message
    value = "(secret)" if name in SECRETS else repr(error.get("input"))
    return f"{PREFIX}{name.upper()}={value}: {message}"
