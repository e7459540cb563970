"""Options that name a file never write over a deployment."""

from pathlib import Path

import pytest

from dflash_deploy.errors import ExitCode
from tests.support.cli import dflash

OPTIONS = (("bench", "--save"), ("bench", "--report"))


@pytest.mark.parametrize("options", OPTIONS)
def test_the_commands_refuse_before_they_do_anything(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / ".env").write_text("VLLM_API_KEY=mine\n")
    ran = dflash(*options, ".env", at=tmp_path)
    assert ran.code is ExitCode.USAGE
    assert ".env cannot be written: it is a file of a deployment" in ran.err
    assert (tmp_path / ".env").read_text() == "VLLM_API_KEY=mine\n"
