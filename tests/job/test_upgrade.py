"""`upgrade` with the real llama.cpp: kept, ended at the start, slower, and killed at any moment."""

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

SHORT = """
import os, signal, threading
from dflash_deploy.operations import upgrade
measured, tested = upgrade._Trial._speed, upgrade.test
upgrade.REQUESTS = upgrade.REPEATS = 1

def planted(trial, deployment, plan):
    # this machine is busy: only the slow settings are slow
    each = 1.0 if plan.settings.max_model_len == 1280 else 9.0
    return {load: (each,) * 7 for load in measured(trial, deployment, plan)}

upgrade._Trial._speed = planted
upgrade.test = lambda directory, **how: tested(directory, only={"text", "auth"}, **how)
"""
"""Two checks, and a load of one request, whose speed depends on the settings only."""

KILLED_WHILE_TESTED = "upgrade.test = lambda *told, **how: os.kill(os.getpid(), signal.SIGKILL)\n"
KILLED_AFTER = "threading.Timer({}, os.kill, (os.getpid(), signal.SIGKILL)).start()\n"

MOMENTS, LATEST = 5, 4.0
"""Kills, and seconds after which the last one may come: an upgrade takes longer, or ends before."""


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
    assert not (box / ".dflash" / "upgrade.json").exists()
    return found


def test_settings_that_work_are_kept_and_others_taken_back(box: Path) -> None:
    good = catalog(box, MAX_MODEL_LEN=1024)
    assert upgraded(box, good, "--check").code is ExitCode.SMOKE_TEST
    assert dflash("upgrade", at=box, environment=good).code is ExitCode.USAGE
    assert agrees(box) == 2048

    done = upgraded(box, good).succeeded().document["data"]
    assert (done["outcome"], agrees(box)) == ("kept", 1024)
    assert [(row["name"], row["old"], row["new"]) for row in done["changes"]] == [("MAX_MODEL_LEN", "2048", "1024")]
    assert done["before"].keys() == done["after"].keys() != set()
    assert upgraded(box, good, "--check").succeeded()

    ends = upgraded(box, catalog(box, MAX_MODEL_LEN=1024, EXTRA_ARGS="--threads 1 --rope-scaling no"))
    assert (ends.code, ends.document["data"]["outcome"]) == (ExitCode.NOT_READY, "back")
    assert "the old settings run again" in ends.document["error"]["message"]
    assert agrees(box) == 1024

    slow = upgraded(box, catalog(box, MAX_MODEL_LEN=1280))
    assert slow.code is ExitCode.BENCHMARK
    assert "slower" in slow.document["error"]["message"]
    assert agrees(box) == 1024


def killed(box: Path, environment: dict[str, str], how: str) -> None:
    server = command_server()
    server.run(("upgrade", "--yes"), box, {**os.environ, **environment}, 60, SHORT + how)


def test_after_a_kill_status_says_what_runs_and_rollback_goes_back(box: Path) -> None:
    upgraded(box, catalog(box, MAX_MODEL_LEN=1024))
    killed(box, catalog(box, MAX_MODEL_LEN=1536), KILLED_WHILE_TESTED)
    assert "new settings" in dflash("status", "--json", at=box).document["data"]["upgrade"]
    dflash("rollback", at=box).succeeded()
    assert agrees(box) == 1024


def test_after_a_kill_at_any_moment_the_same_command_ends_it(box: Path) -> None:
    moments, ends = random.Random(44), set()
    for number in range(MOMENTS):
        environment = catalog(box, MAX_MODEL_LEN=(1024, 1536)[number % 2 == 0])
        killed(box, environment, KILLED_AFTER.format(moments.uniform(0.2, LATEST)))
        assert context(box) <= {1024, 1536}
        upgraded(box, environment).succeeded()
        ends.add(agrees(box))
    assert ends == {1024, 1536}
