"""The site of the documents in a real browser: no page is wider than its window, and none asks another host."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.support.browser import Page, browser_or_skip

ROOT = Path(__file__).resolve().parents[2]

SIZES = """
return [document.documentElement.scrollWidth, innerWidth,
        [...document.querySelectorAll('article img')].map(figure => figure.getBoundingClientRect().width)];
"""


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and writes no log."""

    def log_message(self, *_: object) -> None:
        """Write nothing."""


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    """A browser."""
    with browser_or_skip("the site") as tab:
        yield tab


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built in strict mode."""
    built = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(built)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return built


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """The site's address on this machine."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_every_document_has_a_page(site: Path) -> None:
    documents = [one.relative_to(ROOT / "docs") for one in (ROOT / "docs").rglob("*.md")]
    pages = {str(one.relative_to(site)) for one in site.rglob("*.html")}
    expected = {
        str(one.with_name("index.html" if one.name == "README.md" else f"{one.stem}.html")) for one in documents
    }
    assert pages == expected | {"404.html"}


SHOWN = (
    *("index", "tutorials/no-gpu", "how-to/choose-a-model", "explanation/dflash", "explanation/house"),
    *("reference/commands", "reference/settings", "reference/models", "reference/failures"),
)
"""Pages of each kind, with long lines, wide tables and figures."""


@pytest.mark.parametrize("width", [390, 1280])
def test_no_page_is_wider_than_its_window_or_asks_another_host(page: Page, address: str, width: int) -> None:
    page.requests()
    for name in SHOWN:
        page.open(f"{address}{name}.html", width=width)
        across, room, figures = page.evaluate(SIZES)
        assert across <= room == width, name
        assert all(figure <= room for figure in figures), name
        assert page.console() == [], name
        assert [one for one in page.requests() if not one.startswith((address, "blob:", "data:"))] == [], name


def test_search_finds_a_page(page: Page, address: str) -> None:
    page.open(address + "index.html?q=rollback")
    found = "return [...document.querySelectorAll('.md-search-result__link')].map(one => one.href)"
    # the index is read by a worker of the page; the limit guards against a search that never answers
    for _ in range(600):
        if results := page.evaluate(found):
            break
        page.evaluate("return new Promise(resolve => setTimeout(resolve, 100))")
    assert any("go-back" in one or "rollback" in one for one in results)
