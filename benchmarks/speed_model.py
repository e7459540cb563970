"""The speed model compared with every published figure. No engine runs, so one pass is enough."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median

from pydantic import Field
from rich import box
from rich.table import Table

from dflash_deploy.catalog.hardware import Profile
from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.catalog.models import ModelPair
from dflash_deploy.catalog.read import Entry
from dflash_deploy.catalog.speeds import PublishedSpeed
from dflash_deploy.intake.parse import parse_packaged_yaml
from dflash_deploy.plan.speed import step_seconds
from tools.reference.results import Results, read

POINTS = Path(__file__).with_name("points.yaml")

# Workloads in the catalog that the constants of plan/speed.py are fitted to. points.yaml marks each of its points.
FITTED_WORKLOADS = frozenset({"Math500", "MT-Bench", "short answers"})


class Point(Entry):
    """One published speed that the catalog does not cite."""

    profile: str
    pair: str
    hardware: dict[str, float | str] = Field(default={}, description="what differs from the profile's hardware")
    target_gb: float | None = None
    drafter_gb: float | None = None
    engine: str
    workload: str
    concurrency: int
    sequences: int | None = None
    draft_tokens: int = 0
    acceptance_length: float = 1.0
    drafts_only: bool = False
    speed: float
    fitted: bool
    later: bool = False
    source: str

    @property
    def machine(self) -> Profile:
        """The catalog's profile with the hardware of this point."""
        profile = load_catalog().profiles[self.profile]
        return profile.model_copy(update={"hardware": profile.hardware.model_copy(update=self.hardware)})

    @property
    def weights(self) -> ModelPair:
        """The catalog's pair with the weights' sizes of this point."""
        pair = load_catalog().pairs[self.pair]
        drafter = pair.drafter.model_copy(update={"bytes": int(self.drafter_gb * 1e9)} if self.drafter_gb else {})
        changed: dict[str, object] = {"drafter": drafter}
        if self.target_gb:
            changed["bytes"] = int(self.target_gb * 1e9)
        return ModelPair(pair.family, pair.target.model_copy(update=changed))

    @property
    def length(self) -> float:
        """Tokens per step, the target's own included."""
        return self.acceptance_length + self.drafts_only


@dataclass(frozen=True)
class Compared:
    """One published figure in tokens per second, and the model's prediction for the same acceptance length."""

    point: Point
    seen: float
    expected: float

    @property
    def error(self) -> float:
        """The model's error as a share of the published figure; positive if the model is too fast."""
        return self.expected / self.seen - 1


@lru_cache(maxsize=1)
def points() -> tuple[Point, ...]:
    """All figures that can be compared. A figure with the drafter needs the acceptance length of its run."""
    others = [Point.model_validate(one) for one in parse_packaged_yaml(POINTS.read_text(encoding="utf-8"))]
    # the file says more of its points: the quantity fitted, sizes, hardware
    known = {(one.profile, one.pair, one.speed) for one in others}
    cited = (one for one in _cited() if (one.profile, one.pair, one.speed) not in known)
    return (*cited, *others, *shared_points(read()))


def shared_points(results: Results) -> Iterator[Point]:
    """The rows of shared results on a GPU: all are fitted, except those of tiny models, which no step waits for."""
    catalog = load_catalog()
    for name, result in results.items():
        measured = [(result.model, row) for row in result.rows]
        measured += [(step.model, row) for step in result.steps for row in step.rows]
        for model, row in measured if result.machine.gpus and result.profile in catalog.profiles else ():
            drafts = row.draft_tokens or 0
            usable = row.drafter is not None and not (row.mtp or row.failed) and (row.acceptance_length or not drafts)
            if usable and model in catalog.pairs and not model.startswith("tiny"):
                yield Point(
                    profile=result.profile,
                    pair=model,
                    engine=result.engine,
                    workload=row.workload,
                    concurrency=row.concurrency,
                    draft_tokens=drafts,
                    acceptance_length=row.acceptance_length or 1.0,
                    speed=row.tokens_per_s,
                    fitted=True,
                    source=f"docs/results/{name}.json",
                )


def compared() -> list[Compared]:
    """Each figure with the model's."""
    return [_compare(point) for point in points()]


def _compare(point: Point) -> Compared:
    running = min(point.concurrency, point.sequences or point.concurrency)
    seconds = step_seconds(point.machine, point.weights, concurrency=running, draft_tokens=point.draft_tokens)
    return Compared(point, point.speed, running * point.length / seconds)


def _cited() -> Iterator[Point]:
    counted = set()
    for row in load_catalog().speeds:
        plain = (row.profile, row.pair, row.workload, row.concurrency)
        # the same baseline is published once for each number of draft tokens
        if row.plain is not None and plain not in counted:
            counted.add(plain)
            yield _point(row, speed=row.plain)
        if row.acceptance_length is not None:
            yield _point(
                row,
                speed=row.dflash,
                draft_tokens=row.draft_tokens,
                acceptance_length=row.acceptance_length,
                sequences=row.sequences,
            )


def _point(row: PublishedSpeed, **figures: float | None) -> Point:
    same = row.model_dump(include={"profile", "pair", "workload", "concurrency", "source"})
    return Point.model_validate({**same, **figures, "engine": "", "fitted": row.workload in FITTED_WORKLOADS})


def median_error(rows: list[Compared]) -> float:
    """The median of the absolute errors."""
    return median(abs(row.error) for row in rows)


def groups(rows: list[Compared]) -> dict[str, list[Compared]]:
    """The figures by their part in the fit."""
    shared = [row for row in rows if row.point.source.startswith("docs/results/")]
    return {
        **({"fitted, measured with `make proof`": shared} if shared else {}),
        "fitted": [row for row in rows if row.point.fitted],
        "not fitted": [row for row in rows if not row.point.fitted],
        "not fitted, of others than z-lab": [
            row for row in rows if not row.point.fitted and row.point.source != "z-lab model card"
        ],
        "collected after the fit": [row for row in rows if row.point.later],
    }


def summary(rows: list[Compared]) -> tuple[str, str, str, str]:
    """Number, median error, errors beyond 40 %, and the largest error."""
    errors = [abs(row.error) for row in rows]
    return str(len(rows)), f"{median(errors):.0%}", str(sum(error > 0.4 for error in errors)), f"{max(errors):.0%}"


def table() -> Table:
    """Every published figure with the model's and its source, and the errors of each group in the last rows."""
    rows = compared()
    columns = (
        "profile",
        "model",
        "workload",
        "concurrency",
        "drafts",
        "length",
        "published",
        "model's",
        "error",
        "fit",
        "source",
    )
    drawn = Table(*columns, title="speed model, tokens/s", box=box.SIMPLE_HEAD)
    for row in rows:
        point = row.point
        drawn.add_row(
            point.profile,
            point.pair,
            point.workload,
            str(point.concurrency),
            str(point.draft_tokens or ""),
            f"{point.length:.2f}" if point.draft_tokens else "",
            f"{row.seen:.4g}",
            f"{row.expected:.4g}",
            f"{row.error:+.0%}",
            "fitted" if point.fitted else "later" if point.later else "",
            point.source,
        )
    drawn.add_section()
    for name, chosen in groups(rows).items():
        number, middle, beyond, most = summary(chosen)
        drawn.add_row(
            "median error", name, f"{number} figures", "", "", "", "", f"{beyond} > 40%", middle, f"to {most}", ""
        )
    return drawn
