"""The estimated cache compared with published ones. No engine runs, so one pass is enough."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import Field
from rich import box
from rich.table import Table

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.catalog.models import ModelPair
from dflash_deploy.catalog.read import Entry
from dflash_deploy.intake.parse import parse_packaged_yaml
from dflash_deploy.plan.cache_pool import Sizing
from dflash_deploy.plan.memory import GIB, MemoryFit, fit

POINTS = Path(__file__).with_name("memory_points.yaml")


class MemoryPoint(Entry):
    """One published cache: GiB per GPU, or sequences of full length."""

    profile: str
    pair: str
    engine: str
    memory_gib: float
    utilization: float
    gpus: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    draft_tokens: int
    kv_cache_dtype: str = "auto"
    prefix_caching: bool = False
    eager: bool = False
    uses_mtp_head: bool = False
    target_gib: float | None = Field(default=None, description="weights of one GPU as loaded, if not the catalog's")
    cache_gib: float | None = None
    sequences: float | None = None
    tokens: int | None = None
    fits: bool | None = None
    source: str

    @property
    def planned(self) -> MemoryFit:
        """What `plan` expects at these sizes."""
        sizing = Sizing(
            memory=int(self.memory_gib * GIB),
            steps_in_flight=2,
            **self.model_dump(
                include={
                    "utilization",
                    "gpus",
                    "max_model_len",
                    "max_num_seqs",
                    "max_num_batched_tokens",
                    "draft_tokens",
                    "kv_cache_dtype",
                    "prefix_caching",
                    "eager",
                    "uses_mtp_head",
                }
            ),
        )
        pair = load_catalog().pairs[self.pair]
        if self.target_gib:
            target = pair.target.model_copy(update={"bytes": int(self.target_gib * GIB * self.gpus)})
            pair = ModelPair(pair.family, target)
        return fit(pair, sizing)


@dataclass(frozen=True)
class ComparedMemory:
    """A published cache and the planned one, in the same unit."""

    point: MemoryPoint
    seen: float
    expected: float
    unit: str

    @property
    def error(self) -> float:
        """The plan's error as a share of what was seen; positive if it promises too much."""
        return self.expected / self.seen - 1


def memory_points() -> list[MemoryPoint]:
    """Every published size of a cache, and starts that failed."""
    return [MemoryPoint.model_validate(one) for one in parse_packaged_yaml(POINTS.read_text(encoding="utf-8"))]


def compared() -> list[ComparedMemory]:
    """Every published cache."""
    rows = []
    for point in memory_points():
        planned = point.planned
        if point.cache_gib is not None:
            rows.append(ComparedMemory(point, point.cache_gib, planned.cache_bytes / GIB, "GiB"))
        elif point.sequences is not None:
            rows.append(ComparedMemory(point, point.sequences, planned.sequences, "sequences"))
        elif point.tokens is not None:
            rows.append(ComparedMemory(point, point.tokens, planned.cache_tokens, "tokens"))
    return rows


def table() -> Table:
    """Every published cache with the plan's and its source."""
    columns = ("profile", "GPUs", "model", "engine", "published", "plan", "error", "source")
    drawn = Table(*columns, title="KV cache: GiB of one GPU, or sequences", box=box.SIMPLE_HEAD)
    for row in compared():
        point = row.point
        published, planned = f"{row.seen:.2f} {row.unit}", f"{row.expected:.2f}"
        drawn.add_row(
            point.profile,
            str(point.gpus),
            point.pair,
            point.engine,
            published,
            planned,
            f"{row.error:+.0%}",
            point.source,
        )
    return drawn
