"""Beside what others published."""

from dflash_deploy.bench.figures import COMPARABLE, beside
from dflash_deploy.bench.workload import DATASETS, PACKAGED
from dflash_deploy.catalog.load import load_catalog
from tests.support.measured import PUBLISHED, rows


def test_every_published_workload_has_one_of_ours() -> None:
    assert {speed.workload for speed in load_catalog().speeds} == set(COMPARABLE)
    assert {name for names in COMPARABLE.values() for name in names} <= {*PACKAGED, *DATASETS}


def test_a_published_row_stands_beside_as_many_streams_of_the_nearest_workload() -> None:
    measured = rows()
    (row,) = beside([PUBLISHED, PUBLISHED.model_copy(update={"concurrency": 32})], measured)
    ours = {row.speculation: row.tokens_per_s for row in measured if (row.workload, row.concurrency) == ("code", 4)}
    assert (row.ours_workload, row.ours_dflash, row.ours_plain) == ("code", ours["dflash"], ours["off"])
    assert (row.dflash, row.plain, row.ours_draft_tokens) == (427, 84, 7)
