"""docs/reference/clients.md: what real clients did with the configurations of `connect`."""

from __future__ import annotations

import datetime
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter

from dflash_deploy.connect import clients
from tools.reference.markdown import GENERATED, joined, table

RUNS = Path(__file__).resolve().parents[2] / "docs" / "reference" / "clients.yaml"

INTRODUCTION = """\
# Clients

Each row is a run of the real client with exactly what `dflash-deploy connect` prints or writes, against the tiny pair
with a context of 65,536 tokens and a chat template with tools. "yes": the client sent a request of this kind. All
requests of a run had status 200. The rows with vLLM set `TOOL_CALL_PARSER=qwen3_coder`.

`make test-clients` installs the clients (5 GB), repeats the runs and compares them with this table. CI runs only the
rows with "CI"; all others were run at their date.
"""

# Clients of `connect` without a run, and why.
NOT_RUN = {
    "any": "no client: LangChain, LlamaIndex, pydantic-ai and lm-eval have its values above",
    "librechat": "a web application that is published as a container image, and as no package",
    "open-webui": "version 0.12.4 installs 223 packages with PyTorch and CUDA",
    "vscode": "an application with windows",
    "zed": "an application with windows",
}


class ClientRun(BaseModel):
    """A run of a client; the fields are described at the top of docs/reference/clients.yaml."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    client: str
    version: str
    date: datetime.date
    engine: str
    text: bool
    stream: bool
    image: bool
    tools: bool
    in_ci: bool
    note: str = ""


def runs() -> list[ClientRun]:
    """Return the recorded runs, in the order of the file."""
    return TypeAdapter(list[ClientRun]).validate_python(yaml.safe_load(RUNS.read_text(encoding="utf-8")))


def page() -> str:
    """Return the text of the page."""
    kinds = ("text", "stream", "image", "tools")
    rows = (
        (
            f"`{run.client}`",
            f"{run.version}, {run.engine}",
            *("yes" if getattr(run, kind) else "-" for kind in kinds),
            "CI" if run.in_ci else str(run.date),
            run.note,
        )
        for run in runs()
    )
    first = ((f"`{name}`", str(one.request), one.source) for name, one in clients().items() if one.request)
    return joined(
        INTRODUCTION,
        GENERATED.format(source="`docs/reference/clients.yaml` and `connect/clients.yaml`"),
        "",
        *table(("client", "version, engine", *kinds, "run", "note"), rows),
        "## Not run",
        "",
        "Of these, the tests check only the form of the configuration.",
        "",
        *table(("client", "why"), ((f"`{name}`", why) for name, why in NOT_RUN.items())),
        "## First requests",
        "",
        "Tokens of the first request of an agent, with its tools. A smaller context cannot work; `connect` reports it.",
        "",
        *table(("client", "tokens", "measured"), first),
    )
