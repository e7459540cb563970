"""Links of the site that leave docs/ lead to the repository; all others stay as they are."""

from types import SimpleNamespace

import pytest

from tools.site_links import on_page_markdown

CONFIG = SimpleNamespace(extra={"repository": "https://example.com/repository"})


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
    shown = on_page_markdown(
        f"See [it]({link}).", page=SimpleNamespace(file=SimpleNamespace(src_uri=page)), config=CONFIG, files=()
    )
    assert shown == f"See [it]({on_the_site})."
