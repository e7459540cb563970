"""The report of a benchmark: `report.html` with the document of a run, which its script draws.

The file needs no network. It is light or dark as the reader's system. Texts of the document are never markup.
"""

from __future__ import annotations

from importlib import resources

PLACEHOLDER = "/* the document of `bench --save` */"


def page(document: str) -> str:
    """The report of a document of `bench --save`, as JSON."""
    template = (resources.files("dflash_deploy.bench") / "report.html").read_text(encoding="utf-8")
    # as text of a script the document could end it
    return template.replace(PLACEHOLDER, document.replace("<", "\\u003c"))
