"""`upgrade` with the real llama.cpp: kept, ended at the start, refused by a check, and killed at any moment."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import ExitCode
from tests.support.cli import Ran, dflash
from tests.support.command_server import command_server
from tests.support.llamacpp_native import processes, started

pytestmark = pytest.mark.slow

# Two checks, of which one refuses one setting.
SHORT = """
import os, signal, threading
from types import SimpleNamespace
from dflash_deploy.errors import SmokeTestFailed
from dflash_deploy.operations import upgrade
from dflash_deploy.planning import plan_of
from dflash_deploy.deployment.directory import Deployment
tested = upgrade.test

def planted(directory, **how):
    if plan_of(Deployment(directory)).settings.max_model_len == 1280:
        return SimpleNamespace(failure=SmokeTestFailed("planted by this test", hint=""))
    return tested(directory, only={"text", "auth"}, **how)

upgrade.test = planted
"""

WHILE_TESTED = "upgrade.test = lambda *told, **how: os.kill(os.getpid(), signal.SIGKILL)\n"
AFTER = "threading.Timer({}, os.kill, (os.getpid(), signal.SIGKILL)).start()\n"

LATEST = 3.0  # seconds after which a kill may come: an upgrade takes about as long


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A deployment that answers."""
    with started(tmp_path_factory.mktemp("upgrade")) as directory:
        yield directory


def catalog(box: Path, **values: object) -> dict[str, str]:
    """The environment with a catalog whose profile has other settings."""
    settings = {name: {"value": value, "reason": "planted by this test"} for name, value in values.items()}
    place = box.parent / "-".join(map(str, values.values())).replace(" ", "") / "profiles"
    place.mkdir(parents=True, exist_ok=True)
    engines = [{"release": "vllm-cpu-0.32"}, {"release": "llamacpp-cpu-b11549", "settings": settings}]
    own = {"name": "cpu", "extends": "cpu", "engines": engines}
    (place / "cpu.yaml").write_text(yaml.safe_dump(own))
    return {"DFLASH_CATALOG": str(place.parent)}


def upgraded(box: Path, environment: dict[str, str], *told: str) -> Ran:
    return dflash("upgrade", *(told or ("--yes", "--json")), at=box, environment=environment, first=SHORT)


def context(box: Path) -> set[int]:
    """MAX_MODEL_LEN of each engine that runs: its context, of two sequences."""
    lines = (line.split() for line in processes(box).values() if "llamacpp_wheel" in line and "serve.door" not in line)
    return {int(words[words.index("--ctx-size") + 1]) // 2 for words in lines if "--ctx-size" in words}


def agrees(box: Path) -> int:
    """The context that `.env` and the one engine have."""
    (found,) = context(box)
    assert Deployment(box).values["MAX_MODEL_LEN"] == str(found)
    return found


def killed(box: Path, environment: dict[str, str], how: str) -> None:
    command_server().run(("upgrade", "--yes"), box, {**os.environ, **environment}, 60, SHORT + how)


def test_without_a_terminal_it_asks_for_yes_and_a_check_changes_nothing(box: Path) -> None:
    newer = catalog(box, MAX_MODEL_LEN=1024)
    found = upgraded(box, newer, "--check", "--json")
    assert (found.code, found.document["data"]["outcome"]) == (ExitCode.SMOKE_TEST, "planned")
    assert dflash("upgrade", at=box, environment=newer).code is ExitCode.USAGE
    assert dflash("upgrade", "--check", at=box).succeeded()
    assert agrees(box) == 2048


@pytest.mark.parametrize(
    ("settings", "code", "outcome", "then"),
    [
        ({"MAX_MODEL_LEN": 1024}, ExitCode.DONE, "kept", 1024),
        ({"MAX_MODEL_LEN": 1024, "EXTRA_ARGS": "--threads 1 --rope-scaling no"}, ExitCode.NOT_READY, "back", 1024),
        ({"MAX_MODEL_LEN": 1280}, ExitCode.SMOKE_TEST, "back", 1024),
    ],
    ids=["good", "ends", "wrong"],
)
def test_after_a_kill_at_any_moment_the_same_command_keeps_it_or_goes_back(
    settings: dict[str, object], code: ExitCode, outcome: str, then: int, box: Path
) -> None:
    environment = catalog(box, **settings)
    killed(box, environment, AFTER.format(random.Random(outcome + str(code)).uniform(0.2, LATEST)))
    assert len(context(box)) < 2
    done = upgraded(box, environment)
    # `current`: it had ended before the kill
    if (found := done.document["data"]["outcome"]) != "current":
        assert (done.code, found) == (code, outcome)
    assert agrees(box) == then


def test_after_a_kill_up_keeps_what_starts_and_rollback_goes_back(box: Path) -> None:
    newer, before = catalog(box, MAX_MODEL_LEN=1536), agrees(box)
    for command, then in (("rollback", before), ("up", 1536)):
        killed(box, newer, AFTER.format(0.2))
        killed(box, newer, WHILE_TESTED)
        assert agrees(box) == 1536
        dflash(command, at=box, environment=newer).succeeded()
        assert agrees(box) == then
    assert upgraded(box, newer).document["data"]["outcome"] == "current"


def test_settings_that_do_not_start_after_a_kill_give_way_to_the_last_good_ones(box: Path) -> None:
    before, wrong = agrees(box), catalog(box, MAX_MODEL_LEN=1024, EXTRA_ARGS="--threads 1 --rope-scaling no")
    killed(box, wrong, "upgrade.Start.start_and_check = lambda *told: os.kill(os.getpid(), signal.SIGKILL)\n")
    assert dflash("up", at=box, environment=wrong).code is ExitCode.NOT_READY
    assert context(box) == {before}
    dflash("rollback", at=box, environment=wrong).succeeded()
    assert agrees(box) == before
