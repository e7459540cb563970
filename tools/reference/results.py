"""The page of shared results: each file of docs/results beside published figures and the prediction of `plan`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from dflash_deploy.catalog.load import Catalog
from dflash_deploy.intake.documents import parse_document
from dflash_deploy.intake.files import read_text
from dflash_deploy.intake.parse import Invalid
from dflash_deploy.plan.speed import predict
from tools.proof.share import LARGEST_SHARED, SharedResult, SharedRow, SharedStep
from tools.reference.markdown import BUILT, code, joined, table

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "results"

Results = Mapping[str, SharedResult]  # shared results by the name of their file
_HEAD = f"""# Shared results

What was measured on machines of users and of this project, with `make proof`. To add yours:
[report a failure](../how-to/report-a-failure.md#share-a-result). `published` are the
[published speeds](speeds.md) of the same profile, model and concurrency, `plan` is the range that the
[speed model](../explanation/speed-model.md) predicts. The prompts, lengths and engines of published speeds differ.

{BUILT.format(source="`docs/results/*.json`")}
"""

_FILE = re.compile(r"[a-z0-9][a-z0-9-]{0,40}\.json")  # names of files become headings and links of the page

_COLUMNS = (
    "step", "workload", "concurrency", "drafter", "tokens/s", "ratio", "acceptance length", "plan", "published",
)  # fmt: skip


def read(folder: Path = FOLDER) -> Results:
    """All results. Raises FileRefused and Invalid for a file that is not one, or whose name is not simple."""
    found = {}
    for file in sorted(folder.iterdir()):
        if not _FILE.fullmatch(file.name):
            raise Invalid(f"{file.name!r}: the name of a shared result is like h100-vllm.json")
        found[file.stem] = parse_document(read_text(file, limit=LARGEST_SHARED), SharedResult, limit=LARGEST_SHARED)
    return found


def machine(result: SharedResult) -> str:
    """The machine of a result in words."""
    gpus = [f"{result.machine.gpus.count(name)}x {name}" for name in dict.fromkeys(result.machine.gpus)]
    driver = f", driver {result.machine.driver}" if result.machine.driver else ""
    return ", ".join(gpus) + driver if gpus else f"no GPU, {result.machine.threads or '?'} processor threads"


def page(catalog: Catalog, results: Results) -> str:
    """The whole page, a section for each file."""
    parts = [_HEAD]
    for name, result in results.items():
        parts += [f"## {name}\n", *_facts(result)]
        measured = [("", result.model, row) for row in result.rows]
        measured += [(step.name, step.model, row) for step in result.steps for row in step.rows]
        if measured:
            parts += table(_COLUMNS, (_row(catalog, result.profile, *one) for one in measured))
        if result.steps:
            parts += table(("step", "result", "seconds", "figures"), _steps(result))
    return joined(*parts)


def _facts(result: SharedResult) -> Iterator[str]:
    named = [("profile", result.profile), ("model", result.model), ("engine", result.engine), ("image", result.image)]
    named += [(f"weights of the {role}", digest) for role, digest in result.weights.items()]
    named += result.versions.items()
    facts = "; ".join(f"{kind} {code(text)}" for kind, text in named if text)
    yield f"{result.date}, dflash-deploy {result.version}, {machine(result)}; {facts or 'an endpoint by its URL'}.\n"


def _row(catalog: Catalog, profile: str, step: str, model: str, row: SharedRow) -> tuple[str, ...]:
    drafting = bool(row.drafter)
    low_high = _planned(catalog, profile, model, row)
    others = [
        speed.dflash if drafting else speed.plain
        for speed in catalog.speeds
        if (speed.profile, speed.pair, speed.concurrency) == (profile, model, row.concurrency)
    ]
    return (
        step,
        row.workload,
        str(row.concurrency),
        {True: str(row.draft_tokens or "on"), False: "off", None: "?"}[row.drafter],
        f"{row.tokens_per_s:.1f}",
        f"{row.speedup:.2f}" if row.speedup else "",
        f"{row.acceptance_length:.2f}" if row.acceptance_length else "",
        f"{low_high[0]:.0f} to {low_high[1]:.0f}" if low_high else "",
        _range([value for value in others if value]),
    )


def _planned(catalog: Catalog, profile: str, model: str, row: SharedRow) -> tuple[float, float] | None:
    if profile not in catalog.profiles or model not in catalog.pairs or row.drafter is None:
        return None
    place, pair = catalog.profiles[profile], catalog.pairs[model]
    expected = predict(place, pair, concurrency=row.concurrency, draft_tokens=row.draft_tokens or 0)
    if expected is None:
        return None
    low, high = (expected.dflash_tokens_per_s if row.drafter else None) or expected.plain_tokens_per_s
    return low, high


def _range(values: Sequence[float]) -> str:
    if not values:
        return ""
    return f"{min(values):g}" if min(values) == max(values) else f"{min(values):g} to {max(values):g}"


def _steps(result: SharedResult) -> Iterator[tuple[str, ...]]:
    for step in result.steps:
        # the planned speeds are in the other table
        shown = {name: value for name, value in step.figures.items() if not name.startswith("planned-")}
        figures = ", ".join(f"{name} {value:g}{_beside_plan(step, name)}" for name, value in shown.items())
        yield step.name, step.state, f"{step.seconds:g}", figures


def _beside_plan(step: SharedStep, name: str) -> str:
    """What `plan` predicted on that machine, and its error as a share of what was measured."""
    planned = step.figures.get(f"planned-{name}")
    if not planned:
        return ""
    measured = step.figures[name]
    return f" (plan: {planned:g}{f', {planned / measured - 1:+.0%}' if measured else ''})".replace("%", " %")
