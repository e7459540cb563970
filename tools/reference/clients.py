"""docs/reference/clients.md: what real clients did with the configurations of `connect`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from dflash_deploy.connect import clients
from tools.reference.markdown import GENERATED, joined, table

RUNS = Path(__file__).resolve().parents[2] / "docs" / "reference" / "clients.yaml"

INTRODUCTION = """\
# Clients

Each row is a run of the real client with exactly what `dflash-deploy connect` prints, against the tiny pair with a
context of 65,536 tokens. "yes": the client sent a request of this kind, and the answer had status 200. llama.cpp
accepts tools, but the template of the tiny pair does not use them. The tests repeat rows with "CI"; all others were
run once, at their date. A client without a row was not run; only the form of its configuration is tested.
"""


def runs() -> list[dict[str, Any]]:
    """Return the recorded runs, in the order of the file."""
    found: list[dict[str, Any]] = yaml.safe_load(RUNS.read_text(encoding="utf-8"))
    return found


def page() -> str:
    """Return the text of the page."""
    kinds = ("text", "stream", "image", "tools")
    rows = (
        (
            f"`{run['client']}`",
            f"{run['version']}, {run['engine']}",
            *("yes" if run[kind] else "-" for kind in kinds),
            "CI" if run["in_ci"] else str(run["date"]),
            run["note"],
        )
        for run in runs()
    )
    first = ((f"`{name}`", str(one.request), one.source) for name, one in clients().items() if one.request)
    return joined(
        INTRODUCTION,
        GENERATED.format(source="`docs/reference/clients.yaml` and `connect/clients.yaml`"),
        "",
        *table(("client", "version, engine", *kinds, "run", "note"), rows),
        "## First requests",
        "",
        "Tokens of the first request of an agent, with its tools. A smaller context cannot work; `connect` reports it.",
        "",
        *table(("client", "tokens", "measured"), first),
    )
