"""A hook of mkdocs: links from a page to files of the repository outside docs/ lead to the repository on the site."""

from __future__ import annotations

import posixpath
import re
from typing import Any

LINK = re.compile(r"(?<=\]\()(?P<path>\.\./[^)#\s]*)(?P<anchor>#[^)\s]*)?(?=\))")
"""A relative link that goes up, as Markdown writes it."""


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: object) -> str:
    """The text of a page with its links out of docs/ replaced. mkdocs calls this for each page."""
    folder = posixpath.dirname(page.file.src_uri)

    def replaced(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", folder, link["path"]))
        if path == "docs" or path.startswith("docs/"):
            return link[0]
        return f"{config.extra['repository']}/blob/main/{path}{link['anchor'] or ''}"

    return LINK.sub(replaced, markdown)
