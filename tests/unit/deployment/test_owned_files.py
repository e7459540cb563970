"""Files that belong to the owner of a deployment, also if root writes them."""

from pathlib import Path

import pytest

from dflash_deploy.deployment import Deployment
from dflash_deploy.deployment.owned_files import write_owned
from dflash_deploy.errors import BadInput


def test_a_linked_directory_is_not_written_through(tmp_path: Path) -> None:
    deployment, elsewhere = Deployment(tmp_path / "box"), tmp_path / "elsewhere"
    deployment.directory.mkdir()
    elsewhere.mkdir()
    file = deployment.directory / ".dflash" / "door" / "Caddyfile"
    assert write_owned(deployment, file, "a site")
    file.unlink()
    file.parent.rmdir()
    file.parent.symlink_to(elsewhere)
    with pytest.raises(BadInput, match="door is a link"):
        write_owned(deployment, file, "a site")
    assert not list(elsewhere.iterdir())
