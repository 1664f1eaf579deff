"""What a client shows a broker: where it comes from, what it refuses, and that the secret is shown to nobody else."""

from __future__ import annotations

import re
import ssl
import traceback
from pathlib import Path
from typing import Any

import pytest
import trustme

from compaction_events.emitter import Emitter
from compaction_events.security import Security, secured

SECRET = "hunter2-and-more"
ACCOUNT: dict[str, Any] = {"security_protocol": "SASL_SSL", "username": "agent", "password": SECRET}


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("pem")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    authority.issue_cert("client").private_key_and_cert_chain_pem.write_to_path(folder / "client.pem")
    return {"cafile": str(folder / "ca.pem"), "certfile": str(folder / "client.pem"), "keyfile": str(folder / "client.pem")}


def test_nothing_is_shown_by_default() -> None:
    assert Security().client_security() == {"security_protocol": "PLAINTEXT", "ssl_context": None}


def test_a_password_is_shown_over_tls(pem: dict[str, str]) -> None:
    options = Security(**ACCOUNT, cafile=Path(pem["cafile"])).client_security()
    context = options.pop("ssl_context")
    assert options == {
        "security_protocol": "SASL_SSL", "sasl_mechanism": "SCRAM-SHA-512", "sasl_plain_username": "agent",
        "sasl_plain_password": SECRET,
    }  # fmt: skip
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


def test_the_same_from_variables_from_a_file_and_from_arguments(pem: dict[str, str], tmp_path: Path) -> None:
    given = {**ACCOUNT, **pem}
    variables = {f"COMPACTION_MONITOR_{name.upper()}": value for name, value in given.items()} | {"HOME": "/", "PASSWORD": "x"}
    file = tmp_path / "security.toml"
    file.write_text("".join(f"{name} = '{value}'\n" for name, value in given.items()))
    assert Security.of(variables) == Security.read(file) == Security.model_validate(given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"security_protocol": "SASL_SSL", "password": SECRET}, "needs username and password"),
        ({"security_protocol": "TLS", "password": SECRET}, "security_protocol: Input should be 'PLAINTEXT'"),
        ({"username": "agent", "password": SECRET}, "a password is of no use with security_protocol PLAINTEXT"),
        ({"cafile": __file__}, "cafile is of no use with security_protocol PLAINTEXT"),
        ({"security_protocol": "SSL", "certfile": __file__}, "certfile and keyfile go together"),
        ({"security_protocol": "SSL", "cafile": "/nowhere/ca.pem"}, "cafile: no such file: /nowhere/ca.pem"),
        ({"secret": SECRET}, "secret: Extra inputs are not permitted"),
        ({"password": 7, "username": SECRET}, "password: Input should be a valid string"),
    ],
)
def test_what_does_not_fit_is_named_without_the_secret(given: dict[str, Any], words: str, tmp_path: Path) -> None:
    file = tmp_path / "security.toml"
    file.write_text("".join(f"{name} = {value!r}\n" for name, value in given.items()))
    with pytest.raises(ValueError, match=re.escape(words)) as error:
        Security.read(file)
    assert SECRET not in "".join(traceback.format_exception(error.value))


def test_a_certificate_that_is_none_is_named(pem: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="cafile, certfile or keyfile"):
        Security(security_protocol="SSL", cafile=Path(__file__)).ssl_context()
    with pytest.raises(ValueError, match="cafile, certfile or keyfile"):
        Security(security_protocol="SSL", certfile=Path(pem["cafile"]), keyfile=Path(pem["cafile"])).ssl_context()


def test_the_secret_is_in_no_text_of_it() -> None:
    security = Security(**ACCOUNT)
    assert SECRET not in f"{security!r} {security} {security.model_dump()} {security.model_dump_json()}"


def test_it_wins_over_what_else_a_client_was_given_and_a_file_takes_none() -> None:
    assert secured({"security_protocol": "SSL", "linger_ms": 1}, Security()) == {
        "security_protocol": "PLAINTEXT", "ssl_context": None, "linger_ms": 1,
    }  # fmt: skip
    assert secured({"linger_ms": 1}, None) == {"linger_ms": 1}
    with pytest.raises(TypeError, match="not an option of a file: "):
        Emitter("file:events.jsonl", agent="coder", security=Security())
