"""A hook of mkdocs: generated pages, links out of docs/, anchors of known failures, and weights in the search."""

from __future__ import annotations

import posixpath
import re
from typing import Any

from mkdocs.structure.files import File, Files

from tools.reference.pages import BUILT

# A relative link that goes up, as Markdown writes it.
LINK = re.compile(r"(?<=\]\()(?P<path>\.\./[^)#\s]*)(?P<anchor>#[^)\s]*)?(?=\))")

FAILURES = "reference/failures.md"

_ROW = re.compile(r'<a id="(?P<id>[a-z0-9-]+)">')  # the anchor of a known failure, which GitHub obeys too


def on_files(files: Files, *, config: Any) -> Files:
    """The files of the site, with the generated ones. mkdocs calls this once for each build."""
    for name, page in BUILT.items():
        files.append(File.generated(config, f"reference/{name}", content=page()))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: object) -> str:
    """The text of a page for the site. mkdocs calls this for each page.

    Links out of docs/ lead to the repository. `extra.search` of mkdocs.yml has weights in the search: of a page, else
    of its folder.
    """
    name = page.file.src_uri
    weights = config.extra["search"]
    page.meta["search"] = {"boost": weights.get(name, weights.get(name.partition("/")[0], 1))}
    if name == FAILURES:
        markdown = _with_anchors(markdown)

    def replaced(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(name), link["path"]))
        if path == "docs" or path.startswith("docs/"):
            return link[0]
        return f"{config.extra['repository']}/blob/main/{path}{link['anchor'] or ''}"

    return LINK.sub(replaced, markdown)


def _with_anchors(markdown: str) -> str:
    """The list of failures with a link to itself at each id, and each remedy as a paragraph of its own."""
    linked = _ROW.sub(r'<a id="\g<id>" href="#\g<id>">', markdown)
    return re.sub(r"^(- .*)\n  (.*)\n", r"\1\n\n    \2\n\n", linked, flags=re.MULTILINE)
