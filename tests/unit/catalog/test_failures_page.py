"""docs/reference/failures.md says what the catalog says."""

from pathlib import Path

from dflash_deploy.catalog.failures_page import page
from dflash_deploy.catalog.load import load_catalog


def test_the_page_is_up_to_date() -> None:
    written = (Path(__file__).parents[3] / "docs" / "reference" / "failures.md").read_text()
    remedy = "python -m dflash_deploy.catalog.failures_page > docs/reference/failures.md"
    assert written == page(load_catalog().failures), remedy


def test_every_id_stands_once() -> None:
    ids = [failure.id for failure in load_catalog().failures]
    assert len(ids) == len(set(ids))
