"""A Ray cluster that exists, as `doctor` judges it. The answers are those of Ray 2.60.0 and of its version check."""

import pytest

from dflash_deploy.doctor import network
from dflash_deploy.doctor.network import judge_cluster
from dflash_deploy.intake.documents import EngineAnswer
from dflash_deploy.plan.result import Plan
from tests.support.examined import a_plan, a_subject

MISMATCH = (
    "RuntimeError: Version mismatch: The cluster was started with: Ray: 2.60.0 Python: 3.12.3 "
    "This process on node 192.0.2.2 was started with: Ray: 2.55.1 Python: 3.12.3"
)


def a_driver(address: str = "192.0.2.2:6379", gpus: str = "2") -> Plan:
    return a_plan(DISTRIBUTED_EXECUTOR="ray", RAY_ADDRESS=address, TENSOR_PARALLEL_SIZE=gpus)


def decided(gpus: str) -> EngineAnswer:
    return EngineAnswer(decided={"version": "2.60.0", "nodes": "2", "gpus": gpus})


@pytest.mark.parametrize(
    ("answered", "status", "said"),
    [
        (decided("2"), "ok", "Ray 2.60.0 answers at 192.0.2.2:6379; alive nodes: 2, GPUs: 2"),
        (decided("1"), "no", "fewer than TENSOR_PARALLEL_SIZE=2"),
        (EngineAnswer(refused=MISMATCH), "no", "install the cluster's releases of Ray and Python"),
        (EngineAnswer(refused="ConnectionError: no"), "no", "must be a node of the cluster"),
        (EngineAnswer(unaskable="Ray is not installed beside the engine"), "no", "pip install ray==VERSION"),
        (None, "no", "no answer for 192.0.2.2:6379 within 45 s"),
    ],
)
def test_the_answer_of_a_cluster(answered: EngineAnswer | None, status: str, said: str) -> None:
    check = judge_cluster(a_driver(), answered)
    assert (check.name, check.status) == ("ray", status)
    assert said in f"{check.saw} {check.fix}"


def test_nothing_is_asked_without_ray() -> None:
    assert list(network.ray_cluster(a_subject(), a_plan())) == []
