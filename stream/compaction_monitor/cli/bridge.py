"""`bridge`: findings to alerting systems that do not read Kafka."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from compaction_monitor.cli.broker import Broker, Set, broker_problems, client_settings
from compaction_monitor.cli.exits import Code, Problem, extra
from compaction_monitor.cli.worker import log_to_stderr

if TYPE_CHECKING:
    from yarl import URL

app = typer.Typer(help="Findings to alerting systems that do not read Kafka.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Findings to alerting systems that do not read Kafka."""


@app.command("alertmanager")
def alertmanager(
    url: Annotated[
        list[str], typer.Option("--url", metavar="URL", help="An Alertmanager, http://HOST:9093; again for each of a cluster.")
    ],
    broker: Broker = None,
    group: Annotated[
        str | None,
        typer.Option("--group", metavar="NAME", help="Kafka group; bridges of one share the work. [default: APP_ID-bridge]"),
    ] = None,
    resend_s: Annotated[
        float,
        typer.Option("--resend-s", min=1.0, help="What is open is told again after so long, and ends after 15 times."),
    ] = 60.0,
    web_port: Annotated[
        int | None,
        typer.Option("--web-port", metavar="PORT", min=1, max=65535, help="Serve /live and /ready."),
    ] = None,
    settings: Set = None,
    json: Annotated[bool, typer.Option("--json", help="Log lines on stderr as JSON, keys sorted.")] = False,
) -> None:
    """Tell Alertmanagers of every alert that is open, and of those that ended within five minutes, until SIGTERM.

    A restart reads again what is still open, and tells nothing that is long over. Exits 5 if no broker answers.
    """
    with extra("monitor"):
        from compaction_monitor.shell.bridge import Bridge, PortError
    urls = [_url(text) for text in dict.fromkeys(url)]
    chosen = client_settings(broker, settings)
    log_to_stderr(chosen.log_level, json=json)
    bridge = Bridge(chosen, urls, group_id=group or f"{chosen.app_id}-bridge", resend_s=resend_s, web_port=web_port)
    with broker_problems():
        try:
            asyncio.run(bridge.run())
        except PortError as error:
            raise Problem(Code.failed, f"Cannot listen on port {web_port}", str(error), "Choose another.") from None


def _url(text: str) -> URL:
    from yarl import URL

    url = URL(text)
    if url.scheme not in ("http", "https") or not url.host:
        raise Problem(Code.usage, f"--url {text}: not an address of an Alertmanager.", todo="Say http://HOST:9093.")
    return url
