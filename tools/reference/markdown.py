"""Markdown that several generated pages share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

# The note at the end of the introduction of a page that is checked in.
GENERATED = "Generated from {source}\nby `make generate`; a test compares them."

# The note at the end of the introduction of a page that only the site has.
BUILT = "Generated from {source}\nby `make docs`."

ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "llamacpp": "llama.cpp"}  # how people write the names of the engines


def table(head: tuple[str, ...], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """The lines of a table, with an empty line after it."""
    yield _row(head)
    yield "|" + "---|" * len(head)
    for row in rows:
        yield _row(row)
    yield ""


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


def code(text: str) -> str:
    """A code span; empty for an empty text."""
    return f"`{text}`" if text else ""


def joined(*parts: str) -> str:
    """The text of a page that ends with one line break."""
    return "\n".join(parts).rstrip("\n") + "\n"
