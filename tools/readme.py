"""`python -m tools.readme`: writes the tables of machines in README.md and docs/explanation/evidence.md."""

import re
from collections.abc import Sequence
from pathlib import Path

from dflash_deploy.catalog.hardware import Profile
from dflash_deploy.catalog.load import Catalog, load_catalog
from dflash_deploy.catalog.recipes import evidence, faster, offered
from dflash_deploy.catalog.speeds import PublishedSpeed
from dflash_deploy.plan.choose import RankedPair, best

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
EVIDENCE = ROOT / "docs" / "explanation" / "evidence.md"

# Every profile, in the order of the table of the evidence.
BOXES = (
    "cpu", "rtx-3090", "rtx-3090-x2", "rtx-3090-x4", "rtx-4090", "rtx-5090", "rtx-5090-x2", "rtx-pro-6000", "dgx-spark",
    "dgx-spark-x2", "a100", "h100", "h100-x2", "h100-x4", "h100-x8", "h200", "h200-x8", "b200", "b200-x8",
)  # fmt: skip

FEW = ("cpu", "rtx-3090", "dgx-spark", "h100", "b200")  # profiles in the table of README.md
CHART = ROOT / "docs" / "pictures" / "speed.svg"

# A row of the table of measured speeds: concurrency, without and with the drafter.
MEASURED = re.compile(r"^\| (\d+)[^|]*\| (\d+)(?: tokens/s)? \| (\d+)(?: tokens/s)? \| [\d.]+ \|$", re.MULTILINE)

# What a table replaces, between its two comments.
MARKED = re.compile(r"(<!-- (boxes|profiles): .*? -->\n)(?:.*?)(<!-- end of \2 -->\n)", re.DOTALL)


def boxes(catalog: Catalog) -> str:
    """The table of machines: the command for each, its models, published speeds, evidence."""
    head = ("| your machine | profile | target | tokens/s that others published | evidence |", "|---|---|---|---|---|")
    return "\n".join((*head, *(_row(catalog, catalog.profile(name)) for name in FEW))) + "\n"


def _row(catalog: Catalog, profile: Profile) -> str:
    first = next(best(profile, catalog))
    pair = first.pair
    target = pair.title.rpartition(", ")[0] + ("" if pair.sees else "; text only")
    state = evidence(profile, pair, first.engine).state
    cells = (profile.title, f"`{profile.name}`", target, _speed(catalog, profile, first), state)
    return "| " + " | ".join(cells) + " |"


def _speed(catalog: Catalog, profile: Profile, first: RankedPair) -> str:
    """Without and with DFlash at concurrency 1, from the lowest to the highest of the workloads, by target."""
    own, pair = [row for row in first.published if row.concurrency == 1], first.pair
    found = faster(pair, first.published, None, offered(profile, catalog))
    option = f"`{found.option}`: **{_span(found.theirs)}** for {found.workload} ({found.source})" if found else ""
    if own or found:
        return "; ".join(filter(None, (_shown(own) if own else "none", option)))
    return profile.speed if profile.speed and profile.speed_of == first.pair.name else "none published"


def _shown(rows: Sequence[PublishedSpeed]) -> str:
    sources = dict.fromkeys(row.source.partition(",")[0] for row in rows)
    plain = [row.plain for row in rows if row.plain is not None]
    without = f"{_span(plain)} → " if plain else ""
    return f"{without}**{_span([row.dflash for row in rows])}** ({'; '.join(sources)})"


def _span(values: Sequence[float]) -> str:
    """One number, or the lowest and the highest, rounded."""
    low, high = round(min(values)), round(max(values))
    return f"{low}" if low == high else f"{low} to {high}"


def profiles(catalog: Catalog) -> str:
    """The table of the evidence: who ran each profile with which engine."""
    head = ("| profile | model | engine | evidence |", "|---|---|---|---|")
    return "\n".join((*head, *(_proof(catalog, name) for name in BOXES))) + "\n"


def _proof(catalog: Catalog, name: str) -> str:
    profile = catalog.profile(name)
    first = next(best(profile, catalog))
    found = evidence(profile, first.pair, first.engine)
    # said once, above the table
    by = found.by.removesuffix("; not run by this project")
    return f"| `{name}` | {first.pair.title} | {first.engine.title} | {found.state}: {by} |"


def filled(text: str, catalog: Catalog) -> str:
    """A page with its tables as the catalog has them."""
    tables = {"boxes": boxes, "profiles": profiles}
    return MARKED.sub(lambda found: f"{found[1]}{tables[found[2]](catalog)}{found[3]}", text)


# Sizes of the chart in pixels: its width, a bar's height, and the room beside the bars.
WIDE, BAR, LEFT, RIGHT = 720, 13, 150, 110

LIGHT = "text{fill:#1f2328}.plain{fill:#9aa4af}.drafts{fill:#0969da}"
DARK = "text{fill:#e6edf3}.plain{fill:#6e7681}.drafts{fill:#58a6ff}"


def chart(text: str) -> str:
    """The measured speeds of the evidence as bars, one pair for each concurrency."""
    rows = [tuple(map(int, row)) for row in MEASURED.findall(text)]
    most = max(max(row[1:]) for row in rows)
    parts = []
    for number, (concurrency, *speeds) in enumerate(rows):
        top = 40 + number * (2 * BAR + 10)
        parts.append(f'<text x="{LEFT - 10}" y="{top + BAR + 5}" text-anchor="end">{concurrency} at a time</text>')
        for kind, speed, y in zip(("plain", "drafts"), speeds, (top, top + BAR), strict=True):
            width = (WIDE - LEFT - RIGHT) * speed / most
            parts.append(f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{width:.0f}" height="{BAR - 2}"/>')
            parts.append(f'<text x="{LEFT + width + 8:.0f}" y="{y + BAR - 3}">{speed} tokens/s</text>')
    height = 40 + len(rows) * (2 * BAR + 10)
    title = "Tokens per second without and with the drafter, tiny models, two CPU cores"
    style = f"text{{font:13px system-ui,sans-serif}}{LIGHT}@media (prefers-color-scheme:dark){{{DARK}}}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {height}" width="{WIDE}" role="img" '
        f'aria-label="{title}"><title>{title}</title><style>{style}</style>\n'
        f'<rect class="plain" x="{LEFT}" y="14" width="12" height="12"/><text x="{LEFT + 18}" y="25">without</text>\n'
        f'<rect class="drafts" x="{LEFT + 90}" y="14" width="12" height="12"/>'
        f'<text x="{LEFT + 108}" y="25">with the drafter</text>\n' + "\n".join(parts) + "\n</svg>\n"
    )


if __name__ == "__main__":
    CHART.write_text(chart(EVIDENCE.read_text(encoding="utf-8")), encoding="utf-8")
    for page in (README, EVIDENCE):
        page.write_text(filled(page.read_text(encoding="utf-8"), load_catalog()), encoding="utf-8")
