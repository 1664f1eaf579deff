"""The page in a browser: sorting works, nothing is loaded, axe-core finds nothing serious in light, dark and narrow."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from compaction_events.builders import completed, started
from compaction_monitor import golden
from tests.compaction_monitor.cli.test_hostile import HOSTILE, story
from tests.compaction_monitor.report.test_report_page import rendered, report

CHROMIUM = shutil.which("chromium")
MISSING = [name for name in ("playwright", "axe_core_python") if find_spec(name) is None]
pytestmark = [
    pytest.mark.chromium,
    pytest.mark.skipif(CHROMIUM is None, reason="Debian's Chromium is not installed: apt-get install chromium"),
    pytest.mark.skipif(bool(MISSING), reason="pip install playwright axe-core-python"),
]
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture
def address(tmp_path: Path) -> str:
    gap = completed(1, "other", summary_tokens=10, claimed_records=100, read_records=3, summary_kind="ok")
    sessions = (report(*golden.series()), report(started("other"), gap, quoted={1: [[3, 10]]}))
    path = tmp_path / "report.html"
    path.write_text(rendered(*sessions, warnings=("a.jsonl: not JSON",)), encoding="utf-8")
    return path.as_uri()


@pytest.mark.parametrize(("scheme", "width"), [("light", 1_100), ("dark", 1_100), ("light", 400)])
def test_axe_finds_nothing_serious(browser: Any, address: str, scheme: str, width: int) -> None:
    package = pytest.importorskip("axe_core_python")
    axe = next(Path(package.__file__).parent.rglob("axe.min.js")).read_text(encoding="utf-8")
    page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 800})
    page.goto(address)
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    page.add_script_tag(content=axe)
    found = page.evaluate("axe.run()")
    assert [(one["id"], one["impact"]) for one in found["violations"] if one["impact"] in ("serious", "critical")] == []
    page.close()


def test_hostile_ids_are_shown_and_nothing_else_happens(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(rendered(report(*story(HOSTILE), files=(HOSTILE,)), warnings=(HOSTILE,)), encoding="utf-8")
    seen: list[str] = []

    def dismissed(dialog: Any) -> None:
        seen.append(dialog.message)
        dialog.dismiss()

    page = browser.new_page()
    page.on("request", lambda request: seen.append(request.url))
    page.on("console", lambda message: seen.append(message.text))
    page.on("pageerror", lambda error: seen.append(str(error)))
    page.on("dialog", dismissed)
    page.goto(path.as_uri())
    page.evaluate("document.querySelectorAll('*').forEach(one => one.dispatchEvent(new Event('mouseover')))")
    assert [url for url in seen if not url.startswith("data:")] == [path.as_uri()]
    assert page.evaluate("document.scripts.length") == 1
    assert "<script>alert(1)</script>" in page.evaluate("document.body.textContent")
    page.close()


def test_tables_are_sorted_by_a_click_and_nothing_is_loaded(browser: Any, address: str) -> None:
    page = browser.new_page()
    seen: list[str] = []
    page.on("request", lambda request: seen.append(request.url))
    page.on("console", lambda message: seen.append(message.text))
    page.on("pageerror", lambda error: seen.append(str(error)))
    page.goto(address)
    first = "document.querySelector('table.sortable tbody tr th').textContent"
    head = page.get_by_role("button", name="Rounds", exact=True).first
    order = []
    for _ in range(2):
        head.click()
        order.append((page.evaluate(first), page.evaluate("document.querySelector('[aria-sort]').ariaSort")))
    assert order == [("other", "ascending"), ("golden-inversion", "descending")]
    assert [url for url in seen if not url.startswith("data:")] == [address]
    page.close()
