"""A spelling of an earlier version is answered with what to do instead."""

from pathlib import Path

import pytest

from dflash_deploy.errors import ExitCode
from dflash_deploy.gone import GONE
from tests.support.cli import dflash


@pytest.mark.parametrize("spelling", ["capacity", "monitor status", "bench --trace", "fleet up --host"])
def test_its_error_has_the_hint(tmp_path: Path, spelling: str) -> None:
    ran = dflash(*spelling.split(), at=tmp_path)
    assert ran.code == ExitCode.USAGE
    assert f"hint: {GONE[spelling]}" in ran.err
