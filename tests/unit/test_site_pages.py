"""What the site adds to the pages: links to the repository, anchors of failures, weights in the search, short menus."""

import re
from types import SimpleNamespace

import pytest
import yaml

from dflash_deploy.errors import where_explained
from tests.support.documents import ROOT
from tools.site_pages import FAILURES, on_page_markdown

CONFIG = SimpleNamespace(
    extra={"repository": "https://example.com/repository", "search": {"how-to": 4, "how-to/a.md": 9}}
)


@pytest.mark.parametrize(
    ("page", "link", "on_the_site"),
    [
        ("index.md", "../README.md", "https://example.com/repository/blob/main/README.md"),
        ("how-to/tune.md", "../../SECURITY.md#limits", "https://example.com/repository/blob/main/SECURITY.md#limits"),
        ("how-to/tune.md", "../reference/bench.md", "../reference/bench.md"),
        ("reference/catalog/README.md", "../../index.md#a", "../../index.md#a"),
        ("index.md", "https://example.com/../x", "https://example.com/../x"),
    ],
)
def test_a_link_leads_to_the_site_or_to_the_repository(page: str, link: str, on_the_site: str) -> None:
    shown, _ = on_the_site_of(page, f"See [it]({link}).")
    assert shown == f"See [it]({on_the_site})."


def on_the_site_of(name: str, text: str) -> tuple[str, object]:
    """The text of a page on the site, and what the search knows of it."""
    page = SimpleNamespace(file=SimpleNamespace(src_uri=name), meta={})
    return on_page_markdown(text, page=page, config=CONFIG, files=()), page.meta["search"]


@pytest.mark.parametrize(
    ("page", "boost"), [("index.md", 1), ("how-to/tune.md", 4), ("how-to/a.md", 9), ("reference/up.md", 1)]
)
def test_what_a_reader_does_is_found_before_what_a_reader_looks_up(page: str, boost: float) -> None:
    assert on_the_site_of(page, "")[1] == {"boost": boost}


def test_each_known_failure_links_to_itself_and_its_remedy_is_a_paragraph() -> None:
    shown, _ = on_the_site_of(
        "reference/failures.md",
        '- <a id="a-b">`a-b`</a>: one; <a id="c">`c`</a>: two.\n  Run `c`: now\n- <a id="d">`d`</a>: three.\n  Wait\n',
    )
    assert re.findall(r'<a id="([\w-]+)" href="#\1">`\1`</a>', shown) == ["a-b", "c", "d"]
    assert [line for line in shown.splitlines() if line.startswith("    ")] == ["    Run `c`: now", "    Wait"]


def test_hints_name_the_address_of_the_site_and_a_page_of_it() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["site_url"]
    assert where_explained("a-b") == f"a-b, see {site}{FAILURES.removesuffix('.md')}.html#a-b"


def test_no_menu_has_more_than_twelve_entries() -> None:
    menu = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    tabs = [entry for tab in menu for entry in tab.values() if isinstance(entry, list)]
    groups = [group for tab in tabs for entry in tab for group in entry.values() if isinstance(group, list)]
    assert len(groups) >= 8
    assert max(map(len, [*tabs, *groups])) <= 12
