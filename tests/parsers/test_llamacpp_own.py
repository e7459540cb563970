"""A target and a draft model that the catalog has never heard of, served by the real llama.cpp."""

import shutil
from pathlib import Path

import pytest

from dflash_deploy.assets import asset
from dflash_deploy.errors import ExitCode
from tests.support.cli import dflash
from tests.support.gguf import key
from tests.support.llamacpp_native import started

HIDDEN = "dflash.embedding_length"


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    """The tiny draft model under another name, in a directory."""
    (tmp_path / "oak").mkdir()
    return Path(shutil.copy(str(asset("models/tiny/gguf/drafter.gguf")), tmp_path / "oak" / "oak-1.gguf"))


def test_an_unknown_pair_is_served_with_drafts_and_a_changed_shape_is_refused(tmp_path: Path, drafter: Path) -> None:
    (tmp_path / "there").mkdir()
    target = shutil.copy(str(asset("models/tiny/gguf/target.gguf")), tmp_path / "acorn.gguf")
    named = ("--model", str(target), "--drafter")
    with started(tmp_path / "there", *named, str(drafter.parent)) as directory:
        checks = dflash("test", "--only", "name,drafts", "--json", at=directory).succeeded().document["data"]["checks"]
        assert [check["status"] for check in checks] == ["passed", "passed"]
        models = dflash("status", "--json", at=directory).succeeded().out
        assert "acorn" in models
    changed = drafter.read_bytes().replace(key(HIDDEN, 128), key(HIDDEN, 64))
    drafter.write_bytes(changed)
    refused = dflash("up", at=directory)
    assert refused.code is ExitCode.PREFLIGHT
    assert "hidden size" in refused.err
    again = dflash("init", "--force", *named, str(drafter), at=directory)
    assert again.code is not ExitCode.DONE
    assert "it was made for a hidden size of 64, the target has 128" in again.err
