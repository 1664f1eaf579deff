"""Every dashboard's panels, asked of a Prometheus and drawn: the same JSON that Grafana gets, the same API that it asks.

    python -m deploy.grafana.preview --prometheus http://127.0.0.1:9090 --out previews

prints each panel's queries and what they give now; with `--out` it draws each dashboard as a page, and opens it in Chromium
for a picture. Exit code 1: a panel has no data; 5: no Prometheus answers.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from deploy.grafana.answers import Answer, Prometheus, UnreachableError, Window, answers, marks, panels
from deploy.grafana.drawing import page

BOARDS: Final = Path(__file__).with_name("dashboards")
WIDTH: Final = 1508
EX_EMPTY: Final = 1
EX_UNREACHABLE: Final = 5
CHROMIUM: Final = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
Board = Mapping[str, Any]
Found = list[tuple[Mapping[str, Any], list[Answer]]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask, tell, draw; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m deploy.grafana.preview", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--prometheus", required=True, metavar="URL", help="where it answers, http://127.0.0.1:9090 for one")
    parser.add_argument("--out", type=Path, metavar="DIR", help="draw the pages here, and their pictures (needs Chromium)")
    parser.add_argument("--minutes", type=float, default=15.0, help="how far back to look (15)")
    parser.add_argument("--json", action="store_true", help="print one JSON object for each query")
    given = parser.parse_args(arguments)
    boards = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(BOARDS.glob("*.json"))]
    prometheus = Prometheus(given.prometheus)
    try:
        window = prometheus.window(given.minutes * 60)
        found = [(board, [(panel, answers(panel, prometheus, window)) for panel in panels(board)]) for board in boards]
    except UnreachableError as error:
        print(error, file=sys.stderr)
        return EX_UNREACHABLE
    for board, of_panels in found:
        for panel, of_panel in of_panels:
            _tell(board, panel, of_panel, window, as_json=given.json)
    if given.out:
        _draw(given.out, found, prometheus, window)
    empty = [
        panel["title"] for _, of_panels in found for panel, of_panel in of_panels if not any(one.lines for one in of_panel)
    ]
    if empty:
        print(f"no data: {', '.join(empty)}", file=sys.stderr)
    return EX_EMPTY if empty else 0


def _tell(board: Board, panel: Mapping[str, Any], of_panel: Sequence[Answer], window: Window, *, as_json: bool) -> None:
    for answer in of_panel:
        query, values = window.fill(answer.query), {line.name: line.now for line in answer.lines}
        if as_json:
            told = {"dashboard": board["uid"], "panel": panel["title"], "query": query, "values": values}
            print(json.dumps(told, sort_keys=True))
        else:
            shown = ", ".join(f"{name} {value:.4g}" for name, value in values.items()) or "no data"
            print(f"{board['uid']}: {panel['title']}\n  {query}\n  {shown}")


def _draw(folder: Path, found: Sequence[tuple[Board, Found]], prometheus: Prometheus, window: Window) -> None:
    """A page for each dashboard, and its picture beside it."""
    from playwright.sync_api import sync_playwright

    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=list(CHROMIUM))
        for board, of_panels in found:
            path = folder / f"{board['uid']}.html"
            path.write_text(page(board, of_panels, marks(board, prometheus, window), window), encoding="utf-8")
            view = browser.new_page(viewport={"width": WIDTH, "height": 900})
            view.goto(path.resolve().as_uri())
            view.screenshot(path=path.with_suffix(".png"), full_page=True)
            view.close()
        browser.close()


if __name__ == "__main__":
    sys.exit(main())
