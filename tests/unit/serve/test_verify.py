"""The proof at build time: an engine without DFlash is no image of ours."""

from pathlib import Path

import pytest

from dflash_deploy.serve.verify import shortcomings


@pytest.mark.parametrize(("family", "word"), [("llamacpp", b"draft-dflash"), ("llamacpp-buun", b"--dflash-max-slots")])
@pytest.mark.parametrize("holder", ["llama-server", "libllama-common.so.0"])
def test_llamacpp_has_the_option_in_the_server_or_a_library(
    tmp_path: Path, family: str, word: bytes, holder: str
) -> None:
    server, environment = tmp_path / "llama-server", {"DFLASH_ENGINE_FAMILY": family}
    assert shortcomings(environment, server) == [f"{server} is missing"]
    server.write_bytes(b"\x7fELF without it")
    (tmp_path / "empty.so").touch()
    (said,) = shortcomings(environment, server)
    assert "has no option" in said
    (tmp_path / holder).write_bytes(b"\0" * 5000 + word + b"\0")
    assert shortcomings(environment, server) == []


def test_an_engine_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shortcomings({"DFLASH_ENGINE_FAMILY": "sglang"}) == ["SGLang is not installed"]


def test_sglang_before_dflash_lacks_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "sglang"
    (package / "srt" / "models").mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    (said,) = shortcomings({"DFLASH_ENGINE_FAMILY": "sglang"})
    assert "0.5.11" in said
    (package / "srt" / "models" / "dflash.py").touch()
    assert shortcomings({"DFLASH_ENGINE_FAMILY": "sglang"}) == []
