"""`python -m dflash_deploy.catalog.failures_page > docs/failures.md`: the fingerprints as a table for people."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from dflash_deploy.catalog.failures import Failure
from dflash_deploy.catalog.load import load_catalog

_HEAD = """# Failures that are known

What `up` and `status` hold an engine's log, its exit code, the container's OOM flag and the kernel's log against. The
first row that fits names the cause. `up --fix` writes what stands under "fix" into `.env` and tries once more: `half`
halves a size, `enough` is room for a draft of every sequence and 8192 tokens of prompts, an empty value leaves the
choice to the engine. `{...}` is what the log says at that place.

Generated from `dflash_deploy/catalog/failures.yaml` by `python -m dflash_deploy.catalog.failures_page`; a test compares
them. One's own rows go into a `failures.yaml` of [one's own catalog](catalog/README.md).
"""


def page(failures: Iterable[Failure]) -> str:
    """The whole page as Markdown."""
    known = list(failures)
    ends = [failure for failure in known if failure.effect == "ends"]
    costs = [failure for failure in known if failure.effect == "costs"]
    parts = (
        _HEAD,
        f"## What ends or hangs an engine ({len(ends)})\n",
        *_table(ends),
        f"\n## What costs speed, memory or a feature ({len(costs)})\n",
        *_table(costs),
    )
    return "\n".join(parts) + "\n"


def _table(failures: Iterable[Failure]) -> Iterator[str]:
    yield "| id | engines | cause | what to do | fix | source |"
    yield "|---|---|---|---|---|---|"
    for failure in failures:
        engines = ", ".join(failure.engines) or "any"
        fix = ", ".join(f"`{name}={value}`" for name, value in failure.fix.items())
        columns = (f"`{failure.id}`", f"{engines} {failure.versions}".strip(), failure.cause, failure.do, fix)
        yield "| " + " | ".join(_cell(column) for column in (*columns, failure.source)) + " |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    sys.stdout.write(page(load_catalog().failures))
