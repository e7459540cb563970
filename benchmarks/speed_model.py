"""The speed model compared with every published figure, each source by the constants that fit all others.

No engine runs, so one pass is enough.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from statistics import median

from pydantic import Field
from rich import box
from rich.table import Table

from dflash_deploy.catalog.hardware import Profile
from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.catalog.models import ModelPair, Text
from dflash_deploy.catalog.read import Entry
from dflash_deploy.catalog.releases import EngineRelease
from dflash_deploy.catalog.speeds import PublishedSpeed
from dflash_deploy.intake.parse import parse_packaged_yaml
from dflash_deploy.plan.speed import WIDTH, WIDTH_OF_MXFP4, WIDTH_OF_TEXT, Drafts, expected_length, step_seconds
from tools.reference.results import Results, read

POINTS = Path(__file__).with_name("points.yaml")

# Publishers whose names are written in several ways. Others are the owner and repository, or the text before a comma.
PUBLISHERS = ("z-lab", "AEON-7", "club-3090", "qwen38-mtp", "inference-atlas", "millstoneai", "DFLASH sweep", "BenHamm")

# The engine of z-lab's card is a pull request of March 2026: sgl-project/sglang#20547, after 0.5.9. Its discussion
# names vLLM's release once.
CARDS = {"z-lab model card": "0.5.9", "discussion of the z-lab card": "0.19.1rc1"}

# Why the model is wrong for a source by more than it may be. The constants are not fitted to them.
REASONS = {
    "sovgrid.org/blog": "a quantization that the catalog has not, 4.75 bits by PrismaQuant",
    "DFLASH sweep": "its attention backend is Triton, slow for blocks of many sequences on this GPU",
    "vllm-project/vllm#22331": "gpt-oss in the month of its release; an A100 has no kernel for MXFP4",
    "vllm-project/vllm#49730": "a report of drafts that are too slow, in a release candidate",
}


class Point(Entry):
    """One published speed that the catalog does not cite."""

    profile: str
    pair: str
    hardware: dict[str, float | str] = Field(default={}, description="what differs from the profile's hardware")
    target_gb: float | None = None
    drafter_gb: float | None = None
    engine: str
    workload: str
    text: Text | None = None
    concurrency: int
    sequences: int | None = None
    draft_tokens: int = 0
    mtp: bool = False
    acceptance_length: float | None = None
    drafts_only: bool = False
    speed: float
    source: str

    @cached_property
    def machine(self) -> Profile:
        """The catalog's profile with the hardware of this point."""
        profile = load_catalog().profile(self.profile)
        return profile.model_copy(update={"hardware": profile.hardware.model_copy(update=self.hardware)})

    @cached_property
    def weights(self) -> ModelPair:
        """The catalog's pair with the weights' sizes of this point, without the lengths that its source published."""
        pair = load_catalog().pairs[self.pair]
        drafter = pair.drafter.model_copy(update={"bytes": int(self.drafter_gb * 1e9)} if self.drafter_gb else {})
        changed: dict[str, object] = {"drafter": drafter}
        if self.target_gb:
            changed["bytes"] = int(self.target_gb * 1e9)
        lengths = {
            name: [one for one in getattr(pair.family, name) if publisher(one.source) != self.publisher]
            for name in ("acceptance", "mtp_acceptance")
        }
        return ModelPair(pair.family.model_copy(update=lengths), pair.target.model_copy(update=changed))

    @cached_property
    def release(self) -> EngineRelease:
        """The catalog's release of the engine, in the version of this point if it is known."""
        name, _, version = self.engine.partition(" ")
        engine = {"sglang": "sglang", "llama.cpp": "llamacpp"}.get(name.lower(), "vllm")
        newest = next(one for one in load_catalog().engines.values() if one.engine == engine and not one.cpu)
        known = max((one for one in load_catalog().engines.values() if one.engine == engine), key=_released)
        return newest.model_copy(update={"version": version or known.version})

    @cached_property
    def publisher(self) -> str:
        """Who measured it: figures of one publisher share rigs, prompts and habits."""
        return publisher(self.source)

    @property
    def drafts(self) -> Drafts | None:
        """What makes the drafts."""
        return None if not self.draft_tokens else "mtp" if self.mtp else "dflash"

    @cached_property
    def length(self) -> float:
        """Tokens per step, the target's own included; what the catalog expects of the text if it was not published."""
        if not self.draft_tokens or self.drafts is None:
            return 1.0
        if self.acceptance_length is not None:
            return self.acceptance_length + self.drafts_only
        return expected_length(self.weights, self.text or "chat", self.draft_tokens, self.drafts)[0]

    @property
    def width(self) -> float:
        """Upper through lower end of the range that `plan` shows for it."""
        if self.weights.target.quantisation == "mxfp4" and self.release.engine == "vllm":
            return WIDTH_OF_MXFP4
        return WIDTH_OF_TEXT if self.draft_tokens else WIDTH


def _released(release: EngineRelease) -> str:
    return str(release.released or "")


def publisher(source: str) -> str:
    """Who published a figure."""
    known = next((name for name in PUBLISHERS if name in source), None)
    named = re.search(r"[\w.-]+/[\w.-]+(?:#\d+)?", source)
    return known or (named[0] if named else re.split(r"[,(]", source)[0].strip())


@dataclass(frozen=True)
class Compared:
    """One published figure in tokens per second, and the model's prediction for its acceptance length."""

    point: Point
    seen: float
    expected: float

    @property
    def error(self) -> float:
        """The model's error as a share of the published figure; positive if the model is too fast."""
        return self.expected / self.seen - 1

    @property
    def inside(self) -> bool:
        """Whether the published figure is in the range that `plan` shows."""
        return abs(math.log(self.expected / self.seen)) <= math.log(self.point.width) / 2


@lru_cache(maxsize=1)
def points() -> tuple[Point, ...]:
    """All figures that can be compared: of the catalog, those whose acceptance length was published."""
    others = [Point.model_validate(one) for one in parse_packaged_yaml(POINTS.read_text(encoding="utf-8"))]
    # the file says more of its points: the quantity fitted, sizes, hardware
    known = {(one.profile, one.pair, one.speed) for one in others}
    cited = (one for one in _cited() if (one.profile, one.pair, one.speed) not in known)
    return (*cited, *others, *shared_points(read()))


def shared_points(results: Results) -> Iterator[Point]:
    """The rows of shared results on a GPU, except those of tiny models, which no step waits for."""
    catalog = load_catalog()
    for name, result in results.items():
        measured = [(result.model, row) for row in result.rows]
        measured += [(step.model, row) for step in result.steps for row in step.rows]
        for model, row in measured if result.machine.gpus and result.profile in catalog.profiles else ():
            drafts = row.draft_tokens or 0
            usable = row.drafter is not None and not row.failed and (row.acceptance_length or not drafts)
            if usable and model in catalog.pairs and not model.startswith("tiny"):
                yield Point(
                    profile=result.profile,
                    pair=model,
                    engine=result.engine,
                    workload=row.workload,
                    concurrency=row.concurrency,
                    draft_tokens=drafts,
                    mtp=row.mtp,
                    acceptance_length=row.acceptance_length,
                    speed=row.tokens_per_s,
                    source=f"docs/results/{name}.json",
                )


def compared(chosen: Sequence[Point] | None = None) -> list[Compared]:
    """Each figure with the model's, by the present constants."""
    return [_compare(point) for point in (points() if chosen is None else chosen)]


def _compare(point: Point) -> Compared:
    running = min(point.concurrency, point.sequences or point.concurrency)
    seconds = step_seconds(
        point.machine,
        point.weights,
        concurrency=running,
        draft_tokens=point.draft_tokens,
        drafts=point.drafts,
        engine=point.release,
    )
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
            lengths = {"draft_tokens": row.draft_tokens, "sequences": row.sequences}
            yield _point(row, speed=row.dflash, acceptance_length=row.acceptance_length, **lengths)
            if row.mtp is not None:
                yield _point(row, speed=row.mtp, acceptance_length=row.mtp_acceptance_length, mtp=True, **lengths)


def _point(row: PublishedSpeed, **figures: float | None) -> Point:
    same = row.model_dump(include={"profile", "pair", "workload", "concurrency", "source"})
    version = row.release or CARDS.get(row.source, "")
    engine = f"{'llama.cpp' if row.engine.startswith('llamacpp') else row.engine} {version}".strip()
    return Point.model_validate({**same, **figures, "engine": engine})


def left_out() -> Iterator[Compared]:
    """Each source by the constants that fit all others, which takes about a minute."""
    from benchmarks.fit_speed import fitted  # noqa: PLC0415 - it compares

    chosen = points()
    for name in dict.fromkeys(point.publisher for point in chosen):
        with fitted([point for point in chosen if point.publisher not in {name, *REASONS}]):
            yield from compared([point for point in chosen if point.publisher == name])


def groups(rows: Sequence[Compared]) -> dict[str, list[Compared]]:
    """The figures by hardware and method."""
    methods = {None: "without drafts", "dflash": "DFlash", "mtp": "MTP"}
    found: dict[str, list[Compared]] = {}
    for row in sorted(rows, key=lambda row: (row.point.profile, row.point.drafts or "")):
        found.setdefault(f"{row.point.profile}, {methods[row.point.drafts]}", []).append(row)
    return found


def totals(rows: Sequence[Compared]) -> dict[str, list[Compared]]:
    """All figures; those of a source without a named reason; and those of each method."""
    usual = [row for row in rows if row.point.publisher not in REASONS]
    return {
        "all": list(rows),
        "without a named reason": usual,
        "without drafts": [row for row in usual if row.point.drafts is None],
        "DFlash": [row for row in usual if row.point.drafts == "dflash"],
        "MTP": [row for row in usual if row.point.drafts == "mtp"],
    }


def summary(rows: Sequence[Compared]) -> tuple[str, str, str, str, str]:
    """Number, median error, errors beyond 40 %, the largest error, and the share inside the range."""
    errors = [abs(row.error) for row in rows]
    inside = sum(row.inside for row in rows) / len(rows)
    beyond = str(sum(error > 0.4 for error in errors))
    return str(len(rows)), f"{median(errors):.0%}", beyond, f"{max(errors):.0%}", f"{inside:.0%}"


def table() -> Table:
    """The errors with each source left out of the fit: by hardware and method, by source, and of all."""
    rows = list(left_out())
    columns = ("published speeds", "number", "median error", "beyond 40 %", "largest", "inside the range", "reason")
    drawn = Table(*columns, title="speed model, each source left out of the fit", box=box.SIMPLE_HEAD)
    sources = {name: [row for row in rows if row.point.publisher == name] for name in _publishers(rows)}
    for part in (groups(rows), sources, totals(rows)):
        for name, chosen in part.items():
            drawn.add_row(name, *summary(chosen), REASONS.get(name, ""))
        drawn.add_section()
    return drawn


def _publishers(rows: Sequence[Compared]) -> list[str]:
    return sorted({row.point.publisher for row in rows})
