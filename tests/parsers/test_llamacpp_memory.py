"""What a plan counts for llama.cpp, against what the real server takes when it starts."""

import re
from pathlib import Path

import pytest

from tests.support.cli import dflash, edit_env
from tests.support.llamacpp_native import init

CACHE = re.compile(r"llama_kv_cache: size = +([\d.]+) MiB .*K \((\w+)\)")
STATES = re.compile(r"llama_memory_recurrent: size = +([\d.]+) MiB .* (\d+) rs_seq")
SEQUENCES, LENGTH, DRAFT_TOKENS = 2, 2048, 7


@pytest.mark.parametrize(("drafter", "kept"), [("", "f16"), ("q4_0", "q4_0")])
def test_the_plan_counts_no_less_than_the_server_takes(drafter: str, kept: str, tmp_path: Path) -> None:
    init(tmp_path)
    extra = "--threads 1 --spec-draft-threads 1 --verbosity 4"
    edit_env(tmp_path, MAX_NUM_SEQS=str(SEQUENCES), MAX_MODEL_LEN=str(LENGTH), EXTRA_ARGS=f"'{extra}'")
    edit_env(tmp_path, KV_CACHE_DTYPE="q8_0", DFLASH_KV_CACHE_DTYPE=drafter)
    planned = dflash("plan", "--json", at=tmp_path).succeeded().document["data"]["memory"]
    try:
        dflash("up", at=tmp_path).succeeded()
        log = (tmp_path / ".dflash" / "engine.log").read_text(encoding="utf-8", errors="replace")
    finally:
        dflash("down", at=tmp_path).succeeded()
    # the last of each: the server measures with a smaller context first
    *_, (of_target, target_type), (of_drafter, drafter_type) = CACHE.findall(log)
    *_, (states, kept_for) = STATES.findall(log)
    assert (target_type, drafter_type, kept_for) == ("q8_0", kept, str(DRAFT_TOKENS))
    taken = (float(of_target) + float(of_drafter)) * 2**20 / (SEQUENCES * LENGTH)
    assert taken <= planned["kv_bytes_per_token"] * 1.01 <= taken * 1.1
    # the tiny pair's states are smaller than a page of its cache, which the plan makes of one size
    assert float(states) * 2**20 / SEQUENCES <= planned["state_bytes_per_sequence"]
