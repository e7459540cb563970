"""`python -m dflash_deploy.catalog.failures_page > docs/reference/failures.md`: the fingerprints as a table."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from dflash_deploy.catalog.failures import ENOUGH_TOKENS, Failure
from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.serve.speculation import PROMPT_TOKENS

_HEAD = f"""# Known failures

`up` and `status` compare the engine's log, its exit code, the container's OOM flag and the kernel log with these rows.
The best evidence names the cause, in this order:

1. The exception that ended the engine, then the exceptions that caused it.
2. The last errors, then other lines without a level.
3. The kernel log and the container's OOM flag.
4. Lines that only report another failure, and the exit code. The exit code counts only if the log has no exception.
5. The part of the engine whose code raised the exception that ended it. Such a cause is never more than likely: it
   names the part and not the reason, and `up` and `explain` also show the lines of an unknown failure.

What another process raises after an exception that no row explains may be its consequence, and names nothing. A row for
a family of failures (`general`) names nothing beside an exception or an error that no row explains.

Among rows that match equally good evidence, the first one counts: the most specific. Lines of level INFO and WARNING
never name what ended an engine. Everything before a sign that the engine serves, such as an answered request, is
history. `up --fix` writes the settings of the column "fix" into `.env` and tries
once more:

- `half` halves the current value.
- `enough` is `{ENOUGH_TOKENS}`: one draft per sequence and {PROMPT_TOKENS} tokens of prompts.
- An empty value lets the engine choose.

`{{...}}` is the text of the log at that place.

Generated from `dflash_deploy/catalog/failures.yaml` by `python -m dflash_deploy.catalog.failures_page`; a test compares
them. Add your own rows in the `failures.yaml` of a [custom catalog](catalog/README.md).
"""


def page(failures: Iterable[Failure]) -> str:
    """The whole page as Markdown."""
    known = list(failures)
    ends = [failure for failure in known if failure.effect == "ends"]
    costs = [failure for failure in known if failure.effect == "costs"]
    parts = (
        _HEAD,
        f"## Failures that end or hang the engine ({len(ends)})\n",
        *_table(ends),
        f"\n## Failures that cost speed, memory or a feature ({len(costs)})\n",
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
