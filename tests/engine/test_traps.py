"""Deployments that are broken on purpose, on the real engine: `test` names what is wrong."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from dflash_deploy.assets import asset
from dflash_deploy.errors import ExitCode
from tests.support import proxies
from tests.support.cli import Ran, dflash, edit_env, initialise
from tests.support.ports import free_port
from tests.support.proxies import Proxy, before
from tests.support.server import Server

pytestmark = pytest.mark.restarts


def test_a_drafter_with_another_mask_token_than_in_training_is_named(tmp_path: Path) -> None:
    """A drafter without training is in tests/parsers/test_llamacpp_faults.py."""
    drafter = tmp_path / "drafter"
    shutil.copytree(asset("models/tiny/drafter"), drafter)
    file = drafter / "config.json"
    config = json.loads(file.read_text())
    assert config["dflash_config"]["mask_token_id"] == 1021
    config["dflash_config"]["mask_token_id"] = 300
    file.write_text(json.dumps(config))
    initialise("--profile", "cpu", "--runtime", "native", "--port", str(free_port()), at=tmp_path)
    edit_env(tmp_path, DFLASH_DRAFTER=str(drafter), DRAFTER_HOST_PATH=str(drafter))
    try:
        dflash("up", at=tmp_path).succeeded()
        ran = dflash("test", "--only", "text,whole,lossless,drafts", "--json", at=tmp_path)
    finally:
        dflash("down", at=tmp_path).succeeded()
    assert ran.code is ExitCode.SMOKE_TEST
    checks = by_name(ran)
    # the target has the last word: what is broken costs speed and no answer
    assert {checks[name]["status"] for name in ("text", "whole", "lossless")} == {"passed"}
    print(checks["drafts"]["got"])
    assert checks["drafts"]["got"].startswith("broken")
    assert "mask_token_id" in checks["drafts"]["hint"]


def by_name(ran: Ran) -> dict[str, Any]:
    return {check["name"]: check for check in ran.document["data"]["checks"]}


class Renames(proxies.RewritesNames):
    """Asks for the tiny target whatever the client asked for."""

    model = "tiny"


@pytest.mark.parametrize(
    ("kind", "check", "named"),
    [
        (proxies.AnswersEverything, "live", "accepts every path"),
        (proxies.DropsPictures, "vision", "dropped before the engine"),
        (proxies.AddsTheKey, "auth", "GET /v1/models 200"),
        (proxies.Caches, "text", "a cache answers"),
        (proxies.Buffers, "stream", "all at once"),
        (proxies.DropsUsage, "stream", "no usage"),
        (proxies.DropsHistory, "turns", "earlier turns do not reach"),
        (proxies.CapsAnswers, "whole", "cut short"),
        (proxies.CutsPrompts, "size", "must be refused"),
        (Renames, "name", "rewrites the model name"),
        (proxies.OtherMetrics, "metrics", "belong to another engine"),
        (proxies.ReadsOn, "cancel", "continues for disconnected clients"),
    ],
)
def test_a_proxy_before_the_engine_is_named(
    kind: type[Proxy], check: str, named: str, drafting: Server, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text(drafting.key)
    with drafting.connect() as endpoint, before(endpoint.url, kind, drafting.key) as url:
        told = ("test", "--url", url, "--key-file", str(key), "--model", "tiny")
        ran = dflash(*told, "--only", check, "--json", at=tmp_path)
    assert ran.code is ExitCode.SMOKE_TEST
    result = by_name(ran)[check]
    assert result["status"] == "failed"
    assert named in f"{result['got']} {result['hint']}"
    assert drafting.key not in ran.out + ran.err
