"""What the pods of an export ask for: GPUs, processor and memory, and how long a start may take."""

import re
from dataclasses import replace

import pytest

from dflash_deploy.catalog.hardware import FirstStart
from dflash_deploy.errors import NotPossible
from dflash_deploy.features.export.folder import folder
from dflash_deploy.features.export.manifests import Cluster, ExportSource, objects, quantity
from dflash_deploy.plan.result import Plan
from dflash_deploy.serve.settings import Settings
from tests.support.manifests import container_of, plan_for, plans_by_name, pod_of, source_for
from tests.support.rows import each_of

PLANS = plans_by_name()


@pytest.mark.parametrize(("measured", "allowed"), [(None, 3600), (30, 3600), (660, 3600), (2000, 6000)])
def test_a_start_may_take_an_hour_or_three_times_what_was_measured(measured: float | None, allowed: int) -> None:
    """A measurement is of the profile's usual models on a local disk: a fast one shortens nothing."""
    plan = plan_for("h100")
    known = None if measured is None else FirstStart(seconds=measured, source="a test")
    source = source_for(replace(plan, profile=plan.profile.model_copy(update={"first_start": known})))
    probe = container_of(source)["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == allowed
    deadline = objects(source, Cluster())["deployment.yaml"]["spec"]["progressDeadlineSeconds"]
    assert deadline > allowed
    assert f"--timeout={allowed // 60}m" in folder(source, Cluster())["README.md"]


@each_of(PLANS)
def test_no_profile_shortens_the_first_start(name: str) -> None:
    probe = container_of(source_for(PLANS[name]))["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 3600


@pytest.mark.parametrize(
    ("profile", "engine", "gpus"),
    [
        ("cpu", None, None),
        ("dgx-spark", None, 1),
        ("rtx-3090", "llamacpp-b11434", 1),
        ("rtx-3090-x2", "vllm-0.33", 2),
        ("rtx-3090-x4", "vllm-0.33", 4),
    ],
)
def test_a_pod_asks_for_the_gpus_that_its_engine_uses(profile: str, engine: str | None, gpus: int | None) -> None:
    cluster = Cluster(runtime_class="nvidia")
    document = objects(source_for(plan_for(profile, engine)), cluster)["deployment.yaml"]
    (container,) = pod_of(document)["containers"]
    assert container["resources"].get("limits") == (gpus and {"nvidia.com/gpu": gpus})
    assert pod_of(document).get("runtimeClassName") == (gpus and "nvidia")


@pytest.mark.parametrize(
    ("engine", "extra", "gpus"),
    [
        ("vllm-0.33", "--data-parallel-size 2", 4),
        ("vllm-0.33", "--data_parallel_size=2 --pipeline-parallel-size 3", 12),
        ("vllm-0.33", "-dp 4 -dp 2", 4),
        ("vllm-0.33", "-pcp 2", 4),
        ("sglang-0.5.23", "--dp-size 2 --pp-size 2", 8),
        ("sglang-0.5.23", "--dp-size 2 --enable-dp-attention", 2),
        ("vllm-0.33", "--max-logprobs 2", 2),
    ],
)
def test_further_parallelism_asks_for_more_gpus(engine: str, extra: str, gpus: int) -> None:
    container = container_of(with_extra(plan_for("rtx-3090-x2", engine), extra))
    assert container["resources"]["limits"] == {"nvidia.com/gpu": gpus}


@pytest.mark.parametrize("extra", ["--data-parallel-size auto", "-pp", "--pipeline-parallel-size=0", "-dp 99999"])
def test_parallelism_without_a_number_is_refused(extra: str) -> None:
    with pytest.raises(NotPossible, match="is not a valid number for -"):
        folder(with_extra(plan_for("rtx-3090-x2", "vllm-0.33"), extra), Cluster())


def with_extra(plan: Plan, extra: str) -> ExportSource:
    settings = Settings({**plan.values, Settings.extra_args.name: extra})
    return source_for(replace(plan, settings=settings))


def test_the_container_asks_for_processor_and_memory() -> None:
    """Without both, Kubernetes evicts a pod first."""
    asked = container_of(source_for(plan_for("h100")))["resources"]["requests"]
    assert re.fullmatch(r"[1-9]\d*m?", asked["cpu"])
    assert re.fullmatch(r"[1-9]\d*[MG]i", asked["memory"])


@each_of(PLANS)
def test_an_engine_asks_for_what_it_has_in_the_memory_of_the_node(name: str) -> None:
    plan = PLANS[name]
    asked = container_of(source_for(plan))["resources"]["requests"]
    memory = int(asked["memory"].removesuffix("Gi")) * 2**30
    assert plan.memory is not None
    if plan.profile.hardware.unified or plan.engine.cpu:
        assert memory > plan.memory.target + plan.memory.drafter
        assert memory < plan.profile.hardware.memory_gib * 2**30
    else:
        assert int(asked["cpu"]) > plan.profile.match.gpus
        assert memory < 2**30 * 64


@pytest.mark.parametrize(
    ("size", "expected"),
    [("16g", "16Gi"), ("", "1Gi"), ("512m", "512Mi"), ("1.5g", "1536Mi"), ("1GB", "1Gi"), ("64k", "64Ki"), ("9", "9")],
)
def test_sizes_are_those_of_kubernetes(size: str, expected: str) -> None:
    assert quantity({Settings.dflash_shm_size.name: size}) == expected
