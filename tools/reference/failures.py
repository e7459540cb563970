"""The page of known failures: for each what it is and what to do, by the files of the catalog."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib import resources
from itertools import groupby

from dflash_deploy.catalog.failures import ENOUGH_TOKENS, Failure, Failures
from dflash_deploy.catalog.read import packaged_files
from dflash_deploy.intake.parse import parse_packaged_yaml
from dflash_deploy.serve.speculation import PROMPT_TOKENS
from tools.reference.markdown import BUILT, ENGINES, code, joined

_HEAD = f"""# Known failures

`up`, `status` and `explain` compare the engine's log, its exit code, the container's OOM flag and the kernel log with
these {{count}} rows, and print cause and remedy with the values of the log in place of `{{{{NAME}}}}`. [How a cause is
chosen](../explanation/diagnosis.md) has the order. Patterns, versions and sources are in
`dflash_deploy/catalog/failures/`; a [custom catalog](catalog/README.md) adds rows.

Names in capitals are settings of `.env`; DFLASH_ENGINE chooses another release. `up --fix` writes the settings after
"fix" and tries once more. `half` halves the current value, an empty value lets the engine choose, and `enough` is
`{ENOUGH_TOKENS}`: one draft per sequence and {PROMPT_TOKENS} tokens of
prompts.

{BUILT.format(source="`dflash_deploy/catalog/failures/`")}
"""

# What the introduction says once for all remedies: where settings are, and which one chooses the release.
_IN_ENV = re.compile(r" \(DFLASH_ENGINE in \.env\)|(?P<setting>\b[A-Z]{2,}_[A-Z0-9_]+(?:=[^\s,;]+)?) in \.env\b")


def page() -> str:
    """The whole page: for each file of the catalog a list of each group of engines."""
    parts, count = list[str](), 0
    for file in packaged_files(resources.files("dflash_deploy.catalog") / "failures"):
        text = file.read_text(encoding="utf-8")
        rows = sorted(Failures.model_validate(parse_packaged_yaml(text)).failures, key=_engines)
        title = text.partition("\n")[0].strip("# .")
        parts.append(f"## {title}\n")
        for engines, alike in groupby(rows, key=_engines):
            parts += [f"**{engines}**\n", *_entries(alike), ""]
        count += len(rows)
    return joined(_HEAD.format(count=count), *parts)


def _engines(row: Failure) -> str:
    """The engines that fail this way, in one order. The buun fork is one of llama.cpp."""
    return ", ".join(shown for name, shown in ENGINES.items() if name in row.engines) or "Every engine"


def _entries(rows: Iterable[Failure]) -> Iterator[str]:
    """An entry for each remedy, with the rows that have it; the remedy is its second line."""
    remedies: dict[str, list[Failure]] = {}
    for row in sorted(rows, key=lambda row: row.id):
        fix = ", ".join(code(f"{name}={value}") for name, value in row.fix.items())
        do = _IN_ENV.sub(lambda said: said["setting"] or "", row.do)
        remedies.setdefault(do[0].upper() + do[1:] + (f"; fix {fix}" if fix else ""), []).append(row)
    for remedy, alike in remedies.items():
        causes = (f'<a id="{row.id}">{code(row.id)}</a>: {row.part or row.cause}' for row in alike)
        yield f"- {'; '.join(causes)}.\n  {remedy}"
