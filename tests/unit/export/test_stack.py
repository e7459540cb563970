"""The values of production-stack's chart: accepted by its schema for each plan of vLLM, and refused for others."""

from dataclasses import replace
from typing import Any

import pytest

from dflash_deploy.errors import NotPossible
from dflash_deploy.features.export.cluster import Cluster
from dflash_deploy.features.export.stack import VALUES, image_parts, stack_folder, stack_values
from dflash_deploy.plan.result import Plan
from dflash_deploy.serve.settings import Settings
from tests.support.helm import values_schema
from tests.support.manifests import plan_for, plans_by_name, source_for
from tests.support.rows import yaml_document

PLANS = {name: plan for name, plan in plans_by_name().items() if plan.engine.engine == "vllm" and not plan.engine.cpu}
SHAPES = (Cluster(), Cluster(replicas=3, weights="claim", runtime_class="nvidia", image="r.example:5000/v:1"))


def test_the_schema_of_the_chart_accepts_the_values_of_every_plan() -> None:
    assert len(PLANS) >= 20
    for plan in PLANS.values():
        for cluster in SHAPES:
            # as helm reads them
            values_schema().validate(yaml_document(stack_folder(source_for(plan), cluster)[VALUES]))
    print(f"values of {len(PLANS)} plans in {len(SHAPES)} shapes are valid for the chart")


@pytest.mark.parametrize("name", PLANS)
def test_drafter_and_gateway_are_among_the_arguments(name: str) -> None:
    plan = PLANS[name]
    (model,) = stack_values(source_for(plan), Cluster())["servingEngineSpec"]["modelSpec"]
    further = model["vllmConfig"]["extraArgs"]
    assert all(isinstance(word, str) for word in further)
    assert further[-2] == "--middleware"
    assert ("--speculative-config" in further) == plan.speculating
    own = {"--max-model-len", "--max-num-seqs", "--gpu-memory-utilization", "--host", "--port"}
    assert not own & set(further)
    environment = {one["name"]: one["value"] for one in model["env"]}
    assert len(environment) == len(model["env"])
    # the gateway reads them; keys are in Secrets
    assert environment["DFLASH_PORT"] == "8000"
    assert not {"VLLM_API_KEY", "DFLASH_API_KEYS", "HF_TOKEN", "DFLASH_SECRETS_FILE"} & environment.keys()


def with_values(plan: Plan, **values: str) -> Plan:
    return replace(plan, settings=Settings({**plan.values, **values}))


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (plan_for("h100", "sglang-0.5.23"), "runs vLLM only, and this deployment SGLang"),
        (plan_for("rtx-3090", "llamacpp-b11434"), r"runs vLLM only, and this deployment llama\.cpp"),
        (plan_for("cpu"), "the build for the CPU"),
        (plan_for("dgx-spark-x2", master_addr="10.0.0.1"), "NODES=2"),
        (with_values(plan_for("h100"), ENABLE_PREFIX_CACHING=""), "ENABLE_PREFIX_CACHING is empty"),
    ],
)
def test_what_the_chart_cannot_run_is_refused_with_another_way(plan: Plan, said: str) -> None:
    with pytest.raises(NotPossible, match=said) as refused:
        stack_folder(source_for(plan), Cluster())
    assert "export kubernetes" in refused.value.hint or "in .env" in refused.value.hint


@pytest.mark.parametrize(
    ("image", "parts"),
    [
        ("dflash-deploy/vllm:0.33.0", ("dflash-deploy/vllm", "0.33.0")),
        ("r.example:5000/vllm", ("r.example:5000/vllm", "latest")),
        ("r.example:5000/vllm:1", ("r.example:5000/vllm", "1")),
        (f"r.example/v@sha256:{'0' * 64}", ("r.example/v@sha256", "0" * 64)),
    ],
)
def test_the_chart_joins_the_parts_of_an_image_with_a_colon(image: str, parts: tuple[str, str]) -> None:
    assert image_parts(image) == parts
    assert ":".join(parts) in {image, f"{image}:latest"}


def test_one_engine_ends_before_the_next_one_starts_and_several_end_one_at_a_time() -> None:
    source = source_for(plan_for("h100"))
    values: list[dict[str, Any]] = [stack_values(source, cluster)["servingEngineSpec"] for cluster in SHAPES]
    assert values[0]["strategy"] == {"type": "Recreate"}
    assert values[1]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    volumes = {volume["name"]: volume for volume in values[1]["modelSpec"][0]["extraVolumes"]}
    assert volumes["weights"]["persistentVolumeClaim"]["claimName"] == "dflash-weights-shared"
    assert "dflash-weights-shared" in stack_folder(source, SHAPES[1])["README.md"]
    # the claim of the cache is an object of `export kubernetes`
    assert {"name": "cache", "emptyDir": {}} in values[0]["modelSpec"][0]["extraVolumes"]
