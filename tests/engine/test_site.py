"""The site of the documents in a real browser: widths, requests, the search, the filter of failures, and the README."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from markdown_it import MarkdownIt

from dflash_deploy.catalog.load import load_catalog
from tests.support import documents
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
    written = {one.relative_to(ROOT / "docs") for one in documents.documents() if one.is_relative_to(ROOT / "docs")}
    pages = {str(one.relative_to(site)) for one in site.rglob("*.html")}
    expected = {str(one.with_name("index.html" if one.name == "README.md" else f"{one.stem}.html")) for one in written}
    assert pages == expected | {"404.html"}


# Pages of each kind, with long lines, wide tables and figures.
SHOWN = (
    *("index", "tutorials/no-gpu", "how-to/choose-a-model", "explanation/dflash", "explanation/house"),
    *("reference/commands", "reference/settings", "reference/models", "reference/failures"),
)


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


# What a reader types, and the pages of which one must be among the first three found.
QUESTIONS = {
    "out of memory": ("explanation/memory", "reference/failures"),
    "vscode": ("tutorials/coding-assistant", "how-to/connect-a-client"),
    "uninstall": ("how-to/install",),
    "windows": ("how-to/install",),
    "wsl": ("how-to/install",),
    "colleague": ("tutorials/team", "how-to/give-out-keys"),
    "acceptance is low": ("explanation/acceptance",),
    "my key leaked": ("how-to/give-out-keys",),
    "change the model": ("how-to/choose-a-model",),
    "https": ("how-to/serve-under-a-domain",),
    "slow": ("how-to/tune",),
    "update": ("how-to/upgrade",),
    "image": ("how-to/talk-to-the-model", "how-to/connect-a-client"),
    "dashboard": ("how-to/monitor",),
    "claude code": ("tutorials/coding-assistant",),
    "24 GB": ("tutorials/coding-assistant",),
}

TYPE = """
const field = document.querySelector('.md-search__input');
field.value = %s;
field.dispatchEvent(new Event('keyup'));
"""

FOUND = "[...document.querySelectorAll('.md-search-result__item > a')].map(link => new URL(link.href).pathname)"


def found_for(page: Page, question: str) -> list[str]:
    """The first three pages that the search finds."""
    page.evaluate("document.querySelector('.md-search__input').focus()")
    page.evaluate(TYPE % '""')
    page.until(f"{FOUND}.length === 0")
    page.evaluate(TYPE % json.dumps(question))
    page.until(f"{FOUND}.length > 0")
    found: list[str] = page.evaluate(f"return {FOUND}.slice(0, 3)")
    return found


# What the theme's copy button takes of each block with prompts.
COPIED = """
return [...document.querySelectorAll('code:has(> .gp)')].map(block => {
  block.setAttribute('data-md-copying', '');
  const text = block.innerText;
  block.removeAttribute('data-md-copying');
  return text.trimEnd();
});
"""

# What a reader types who has no time, and the page that must be the first one.
FIRST = {
    "out of memory": "explanation/memory",
    "ollama": "how-to/talk-to-the-model",
    "port in use": "how-to/report-a-failure",
    "spark": "tutorials/dgx-spark",
    "dgx spark": "tutorials/dgx-spark",
    "gb10": "tutorials/dgx-spark",
}


def test_the_search_finds_the_page_for_someone_in_need_first(page: Page, address: str) -> None:
    page.open(address + "index.html")
    found = {question: found_for(page, question)[0] for question in FIRST}
    assert found == {question: f"/{name}.html" for question, name in FIRST.items()}


@pytest.mark.parametrize("name", ["no-gpu", "first-box", "dgx-spark", "coding-assistant"])
def test_the_copy_button_takes_commands_without_prompts_and_output(page: Page, address: str, name: str) -> None:
    page.open(f"{address}tutorials/{name}.html")
    copied = page.evaluate(COPIED)
    shown = list(documents.transcripts(ROOT / "docs" / "tutorials" / f"{name}.md"))
    assert copied
    assert shown
    lines = [line for text in copied for line in text.splitlines() if line.strip()]
    assert all(line.startswith("dflash-deploy ") for line in lines)
    assert len(lines) == len(shown)


def test_the_search_finds_the_right_page_among_the_first_three(page: Page, address: str) -> None:
    page.open(address + "index.html")
    missed = {}
    for question, wanted in QUESTIONS.items():
        found = found_for(page, question)
        if not {f"/{one}.html" for one in wanted} & set(found):
            missed[question] = found
    assert not missed


SHOWN_ROWS = "[...document.querySelectorAll('#known-failures ~ ul > li')].filter(row => row.offsetParent)"


def filtered(page: Page, words: str, engine: str = "") -> list[str]:
    """The texts of the known failures that are shown for these words and this engine."""
    typed = f"""
    const [words, engine] = document.querySelector('.failures-filter').children;
    words.value = {json.dumps(words)};
    engine.value = {json.dumps(engine)};
    words.dispatchEvent(new Event('input', {{bubbles: true}}));
    return {SHOWN_ROWS}.map(row => row.innerText);
    """
    texts: list[str] = page.evaluate(typed)
    return texts


def test_known_failures_are_filtered_and_each_has_an_anchor(page: Page, address: str) -> None:
    page.open(f"{address}reference/failures.html#wsl-without-gpu", width=390)
    anchors = page.evaluate("return [...document.querySelectorAll('#known-failures ~ ul a[id]')].map(one => one.id)")
    assert sorted(anchors) == sorted(row.id for row in load_catalog().failures)
    everything = filtered(page, "")
    found = filtered(page, "Out of MEMORY")
    assert 0 < len(found) < len(everything) / 5
    assert all(word in text.lower() for text in found for word in ("out", "of", "memory"))
    assert 0 < len(filtered(page, "out of memory", "llama.cpp")) < len(found)
    assert filtered(page, "no such words") == []
    assert page.evaluate("return document.querySelector('.failures-filter output').textContent").startswith("0 of ")
    # a link to a row that is hidden shows it
    page.evaluate("location.hash = 'no-backend'")
    page.until("document.getElementById('no-backend').offsetParent")


def test_settings_and_failures_are_read_on_a_phone(page: Page, address: str) -> None:
    for name, texts in (("settings", "td:last-child"), ("failures", "#known-failures ~ ul > li > p")):
        page.open(f"{address}reference/{name}.html", width=390)
        inside = f"[...document.querySelectorAll('article {texts}')].map(one => one.getBoundingClientRect())"
        assert page.evaluate(f"return {inside}.filter(at => at.left < 0 || at.right > innerWidth || !at.width)") == []
        assert page.evaluate(f"return {inside}.length") > 45


# The sizes with which GitHub shows a README.
GITHUB = """<style>
body { width: 838px; margin: 0 auto; font: 16px/1.5 sans-serif }
img { max-width: 100% } p, ul, pre, table { margin: 0 0 16px } pre { padding: 16px; font-size: 85%; line-height: 1.45 }
h1, h2 { margin: 24px 0 16px; padding-bottom: .3em; line-height: 1.25 }
</style>
"""


def test_the_three_commands_of_the_readme_are_on_the_first_screen(page: Page, tmp_path: Path) -> None:
    text = MarkdownIt("commonmark").enable("table").render((ROOT / "README.md").read_text(encoding="utf-8"))
    file = tmp_path / "readme.html"
    file.write_text(GITHUB + text.replace('src="', f'src="{ROOT.as_uri()}/'), encoding="utf-8")
    page.open(file, width=1280)
    assert page.evaluate("return [...document.images].every(one => one.naturalWidth)")
    commands = "[...document.querySelectorAll('pre')].find(one => one.textContent.startsWith('dflash-deploy init'))"
    assert page.evaluate(f"return {commands}.getBoundingClientRect().bottom") <= 900
