"""What a start under a domain remembers."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.checks.run import CheckReport
from dflash_deploy.client.answers import Completion
from dflash_deploy.deployment.directory import Deployment, last_good
from dflash_deploy.operations import up as starting
from dflash_deploy.operations.reporter import SILENT
from dflash_deploy.operations.up import Start
from dflash_deploy.plan.result import Choice, Plan
from dflash_deploy.rules.table import plan_deployment
from dflash_deploy.startup.start import Ready
from tests.support.machines import RECORDED

KEY = "a-key-of-the-owner-0123456789"


def planned(deployment: Deployment) -> Plan:
    """The plan of a deployment on a machine with two cores."""
    edited = {name: value for name, value in deployment.values.items() if value}
    choice = Choice(profile="cpu", engine="llamacpp", runtime="native", edited=edited)
    return plan_deployment(replace(RECORDED["cpu"], cpus=2), choice, load_catalog())


def written(place: Path, **settings: str) -> Deployment:
    deployment = Deployment(place)
    deployment.write_env({"VLLM_API_KEY": KEY, "DFLASH_RUNTIME": "native", **settings})
    return Deployment.existing(place)


def test_a_start_under_a_domain_is_good_without_its_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = written(tmp_path, DFLASH_DOMAIN="llm.example.com", MAX_MODEL_LEN="2048")
    plan = planned(deployment)

    @contextmanager
    def endpoint(*_: object) -> Iterator[None]:
        yield None

    def up(*_: object, **__: object) -> Ready:
        return Ready("http://127.0.0.1:8000", "tiny", "native", False, 1.0, Completion("1", "stop", 1, 1, 1.0))

    monkeypatch.setattr(starting, "bring_up", up)
    monkeypatch.setattr(starting, "endpoint_of", endpoint)
    monkeypatch.setattr(starting, "deployed_endpoint", lambda endpoint, plan: None)
    monkeypatch.setattr(starting, "run_checks", lambda endpoint, names: CheckReport(()))
    started = Start(1, SILENT).start_and_check(deployment, plan)
    assert (started.failure, started.endpoint) == (None, "https://llm.example.com/v1")
    good = last_good(deployment)
    assert good is not None
    assert good.values["MAX_MODEL_LEN"] == "2048"
