"""`test --baseline`: the engine restarts without its drafter, answers are compared, and the drafter is back."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dflash_deploy.errors import ExitCode
from tests.support.cli import Ran, dflash, edit_env, initialise
from tests.support.ports import free_port
from tests.support.scripted_vllm import FORGETS, installed_in

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Box:
    """A native deployment of the scripted engine."""

    directory: Path
    variables: dict[str, str]

    def run(self, *args: str) -> Ran:
        """Run a command on it."""
        return dflash(*args, at=self.directory, environment=self.variables)


@pytest.fixture(params=[False, True], ids=["right", "forgets"])
def box(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Box]:
    variables = installed_in(tmp_path / "site") | ({FORGETS: "1"} if request.param else {})
    box = Box(tmp_path / "box", variables)
    initialise("--profile", "cpu", "--runtime", "native", "--port", str(free_port()), at=box.directory)
    up = box.run("up")
    # its quick checks are right about the wrong answer
    assert up.code is (ExitCode.SMOKE_TEST if request.param else ExitCode.DONE), up.err
    yield box
    box.run("down").succeeded()


def test_answers_that_drafts_change_are_the_first_finding(box: Box) -> None:
    ran = box.run("test", "--baseline", "--only", "text,drafts", "--json")
    assert "restarting the engine without drafts" in ran.err
    assert "restarting it with its drafter" in ran.err
    checks = {check["name"]: check for check in ran.document["data"]["checks"]}
    if FORGETS in box.variables:
        assert ran.code is ExitCode.SMOKE_TEST
        assert ran.document["error"]["message"].startswith("the answers are not the target's own; 2 of 3 checks failed")
        assert "DFLASH_DRAFTER=off" in ran.document["error"]["hint"]
        assert next(iter(checks)) == "lossless"
        # read again, and compared
        assert "at token 4 the target prefers `4, `" in checks["lossless"]["got"]
        assert "token 4 is `3, ` here, `4, ` without drafts" in checks["lossless"]["got"]
    else:
        assert ran.code is ExitCode.DONE
        assert "are those without drafts" in checks["lossless"]["got"]
    # the drafter is back, and `.env` was never changed
    assert box.run("test", "--only", "drafts").code is ran.code or checks["drafts"]["status"] == "passed"
    assert "reported no draft tokens" not in checks["drafts"]["got"]


def test_what_cannot_be_compared_is_refused_before_the_engine_stops(tmp_path: Path) -> None:
    # another deployment may listen on the port that is the default
    initialise("--profile", "cpu", "--runtime", "native", "--port", str(free_port()), at=tmp_path)
    refusals = (
        (("--baseline", "--baseline-url", "http://127.0.0.1:9"), ExitCode.USAGE, "exclude each other"),
        (("--baseline", "--url", "http://127.0.0.1:9"), ExitCode.USAGE, "cannot be restarted"),
        (("--baseline",), ExitCode.NOT_READY, "start it first: `dflash-deploy up`"),
    )
    for options, code, text in refusals:
        ran = dflash("test", *options, at=tmp_path)
        assert (ran.code, text in ran.err) == (code, True), ran.err
    edit_env(tmp_path, DFLASH_DRAFTER="off")
    ran = dflash("test", "--baseline", at=tmp_path)
    assert "runs without speculative decoding" in ran.err
    assert ran.code is not ExitCode.DONE
