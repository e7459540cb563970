"""A container that is asked for the engine's configuration sees config.json and the GPUs, and no weights or secrets."""

from pathlib import Path

import pytest

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.operations.ask_engine import LIMIT, ask
from dflash_deploy.plan.result import Choice
from dflash_deploy.rules.table import plan_deployment
from dflash_deploy.runtime import docker
from dflash_deploy.runtime.docker import ContainerJob, JobResult
from dflash_deploy.runtime.protocol import Narrate
from dflash_deploy.serve.answer import MARK
from dflash_deploy.serve.secrets import SECRET_NAMES
from tests.support.machines import MACHINES


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[ContainerJob]:
    ran: list[ContainerJob] = []

    def run(job: ContainerJob, narrate: Narrate, *, fetch: bool = True) -> JobResult:
        ran.append(job)
        assert not fetch
        for line in ("INFO starts", "x" * 100_000, f'{MARK}{{"decided": {{"attention_backend": "FLASH_ATTN"}}}}'):
            narrate(line)
        return JobResult(0, (), in_time=len(ran) == 1)

    monkeypatch.setattr(docker, "run_job", run)
    return ran


def test_it_sees_two_directories_and_the_gpus(jobs: list[ContainerJob], tmp_path: Path) -> None:
    choice = Choice(profile="h100", runtime="compose")
    plan = plan_deployment(MACHINES["h100"], choice, load_catalog())
    target, drafter = tmp_path / "target", tmp_path / "drafter"
    heard = ask(plan, target, drafter)
    assert heard.answer is not None
    assert heard.answer.decided == {"attention_backend": "FLASH_ATTN"}
    (job,) = jobs
    assert (job.image, job.gpus, job.seconds) == (plan.settings.dflash_image, True, LIMIT)
    assert job.mounts == {"/models/target": (target, False), "/models/drafter": (drafter, False)}
    assert (job.entry_point, job.command) == ("python3", ("-m", "dflash_deploy.serve.ask"))
    assert job.environment["MODEL_PATH"] == "/models/target"
    assert not set(SECRET_NAMES) & set(job.environment)
    # killed for its time
    late = ask(plan, target, drafter)
    assert (late.status, late.answer) == (None, None)
