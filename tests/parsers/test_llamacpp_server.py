"""`test` against the real llama.cpp with a real DFlash drafter, the tiny pair on the CPU: its drafts are read."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash_deploy.client import Endpoint
from dflash_deploy.redact import Secret
from tests.support.cli import dflash
from tests.support.llamacpp_server import python_path
from tests.support.parsers.fetch import REPOSITORY
from tests.support.ports import free_port

KEY = "of-a-llama-server-0123456789"


def command(*args: str) -> tuple[list[str], dict[str, str]]:
    """The module in a process of its own, which brings its libraries along."""
    places = [*map(str, python_path()), str(REPOSITORY)]
    return [sys.executable, "-m", "tests.support.llamacpp_server", *args], os.environ | {
        "PYTHONPATH": os.pathsep.join(places)
    }


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of the server, and the file with its key."""
    directory = tmp_path_factory.mktemp("llamacpp")
    (directory / "key").write_text(KEY)
    converting, environment = command("convert", str(directory))
    done = subprocess.run(converting, env=environment, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    serving, environment = command("serve", str(directory), str(free_port()))
    with (
        (directory / "log").open("w") as log,
        subprocess.Popen(
            serving, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        ) as server,
    ):
        assert server.stdout is not None
        assert server.stdin is not None
        said = server.stdout.readline().strip()
        assert said.startswith("http"), (directory / "log").read_text()[-3000:]
        try:
            yield said, directory / "key"
        finally:
            server.stdin.close()
            server.wait(60)


def test_the_drafts_of_llamacpp_are_read_from_its_metrics(served: tuple[str, Path], tmp_path: Path) -> None:
    url, key = served
    told = ("test", "--url", url, "--key-file", str(key), "--model", "tiny", "--json")
    data = dflash(*told, "--only", "live,auth,name,text,whole,vision,json,cancel,metrics,drafts", at=tmp_path)
    checks = {check["name"]: check for check in data.succeeded().document["data"]["checks"]}
    # it has no projector, and answers every name
    assert {name for name, check in checks.items() if check["status"] == "skipped"} == {"name", "vision"}
    assert "llamacpp:" in checks["metrics"]["got"]
    assert checks["drafts"]["got"].startswith("good: acceptance length")
    assert "first draft token accepted" in checks["drafts"]["got"]


def test_an_answer_tells_its_drafts_as_the_metrics_count_them(served: tuple[str, Path]) -> None:
    url, _ = served
    with Endpoint(url, Secret(KEY), "tiny") as endpoint:
        before = endpoint.counters()
        answer = endpoint.chat("Count from 1 to 50.", max_tokens=256)
        counted = endpoint.counters() - before
    assert answer.drafted is not None
    assert (answer.drafted.draft_tokens, answer.drafted.accepted_tokens) == (
        counted.draft_tokens,
        counted.accepted_tokens,
    )
    # the steps are worked out, not told
    assert abs(answer.drafted.drafts - counted.drafts) <= 1
    assert counted.acceptance_length is not None
    assert counted.acceptance_length > 5
