"""The main job, as the README has it, with the real llama.cpp and the tiny pair: init, up, test, bench, down."""

from pathlib import Path

from dflash_deploy.errors import ExitCode
from tests.support.cli import dflash, edit_env
from tests.support.llamacpp_native import init, processes

# Checks of `test` that the engine ignores, or that the tiny target cannot answer.
SKIPPED = {"digit", "shape", "tools", "reasoning"}


def test_from_an_empty_directory_to_a_proven_and_measured_endpoint_and_back(tmp_path: Path) -> None:
    init(tmp_path)
    assert (tmp_path / ".env").stat().st_mode & 0o777 == 0o600
    dflash("up", at=tmp_path).succeeded()
    try:
        checked = dflash("test", "--json", at=tmp_path).succeeded().document["data"]
        checks = {check["name"]: check["status"] for check in checked["checks"]}
        assert {name for name, status in checks.items() if status == "skipped"} == SKIPPED
        assert set(checks.values()) == {"passed", "skipped"}
        assert checked["acceptance_length"] > 5

        told = ("--baseline", "--concurrency", "1", "--workload", "own", "--requests", "8", "--json")
        rows = dflash("bench", *told, at=tmp_path).succeeded().document["data"]["rows"]
        drafting, plain = sorted(rows, key=lambda row: -(row["acceptance_length"] or 0))
        assert drafting["acceptance_length"] > 5
        assert plain["acceptance_length"] is None
        assert min(row["tokens_per_s"] for row in rows) > 0
        now = dflash("status", "--json", at=tmp_path).document["data"]
        assert (now["state"], now.get("instead")) == ("ready", None)

        edit_env(tmp_path, MAX_NUM_SEQS="1")
        changed = ".env has changed since the last good start: MAX_NUM_SEQS: 2 -> 1"
        assert f"settings  {changed}; `dflash-deploy up` applies it\n" in dflash("status", at=tmp_path).out
        here = dflash(at=tmp_path).out
        assert f"settings   {changed}\n" in here
        assert "next       dflash-deploy up " in here
    finally:
        dflash("down", at=tmp_path).succeeded()
    assert not processes(tmp_path)
    assert dflash("down", at=tmp_path).code is ExitCode.DONE
