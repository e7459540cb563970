"""Two data-parallel copies of the real vLLM behind one gateway: one endpoint, whose counters are those of both."""

import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.operations.keys import usage_of_keys
from dflash_deploy.planning import plan_of
from dflash_deploy.startup.engine import endpoint_of
from tests.support.cli import dflash, edit_env
from tests.support.ports import free_port

pytestmark = pytest.mark.restarts

REQUESTS, AT_ONCE = 24, 8
COUNTED = re.compile(
    r'^vllm:(generation_tokens|spec_decode_num_drafts)_total\{.*engine="(\d)".*\} (\S+)$', re.MULTILINE
)


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A deployment of its own: two copies of the tiny pair with its drafter, which `up` has started and checked."""
    directory = tmp_path_factory.mktemp("copies")
    dflash("init", "--profile", "cpu", "--runtime", "native", "--port", str(free_port()), at=directory).succeeded()
    edit_env(directory, DATA_PARALLEL_SIZE="2")
    dflash("up", at=directory).succeeded()
    yield directory
    dflash("down", at=directory).succeeded()


def test_both_copies_answer_and_are_counted_together(copies: Path) -> None:
    deployment = Deployment.existing(copies)

    def ask(number: int) -> int | None:
        with endpoint_of(deployment, plan_of(deployment)) as endpoint:
            return endpoint.chat(f"Count from 1 to {number % 9 + 2}.", max_tokens=24).completion_tokens

    with ThreadPoolExecutor(AT_ONCE) as pool:
        assert all(pool.map(ask, range(REQUESTS)))
    with endpoint_of(deployment, plan_of(deployment)) as endpoint:
        metrics, key = endpoint.metrics(), deployment.key.reveal()
        text = httpx.get(f"{endpoint.url}/metrics", headers={"Authorization": f"Bearer {key}"}, timeout=60).text
    by_copy: dict[str, Counter[str]] = {"generation_tokens": Counter(), "spec_decode_num_drafts": Counter()}
    for what, engine, value in COUNTED.findall(text):
        by_copy[what][engine] += int(float(value))
    for counted in by_copy.values():
        # each copy has answered, with drafts
        assert counted.keys() == {"0", "1"}
        assert min(counted.values()) > 0
    assert metrics.generated_tokens == by_copy["generation_tokens"].total()
    assert metrics.drafts.drafts == by_copy["spec_decode_num_drafts"].total()
    # the gateway is one process: it has counted the answers of both
    (owner,) = usage_of_keys(copies).keys
    assert owner.generation_tokens == metrics.generated_tokens
    # the process group has one API server
    assert "--api-server-count 1" in (copies / ".dflash" / "engine.log").read_text()


def test_all_checks_pass_on_two_copies(copies: Path) -> None:
    tested = dflash("test", "--json", at=copies).succeeded().document["data"]
    passed = {check["name"] for check in tested["checks"] if check["status"] == "passed"}
    assert {"lossless", "mixed", "burst", "drafts"} <= passed
    assert tested["acceptance_length"] > 3
