"""`export ray`: what a plan becomes in Ray Serve, and what Ray's vLLM cannot do."""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from dflash_deploy.catalog.load import load_catalog, load_ray_releases
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import BadInput
from dflash_deploy.features.export.ray import arguments, environment, files_of, named, obstacles, replicas_in
from dflash_deploy.plan.result import Choice, Plan
from dflash_deploy.rules.table import plan_deployment
from dflash_deploy.serve.gateway.keys import KEYS_FILE
from dflash_deploy.serve.ray_proxy import SETTINGS
from dflash_deploy.serve.secrets import SECRETS_FILE
from tests.support.machines import RTX_3090, machine, made_of

CATALOG, RELEASE = load_catalog(), load_ray_releases()[-1]
KUBERAY = json.loads(Path(__file__).with_name("kuberay.json").read_text())


def on(profile: str, **changes: str) -> Plan:
    facts = made_of(CATALOG.profile(profile))
    engine = "vllm" if profile == "cpu" else None
    plan = plan_deployment(facts, Choice(profile=profile, engine=engine, runtime="compose"), CATALOG)
    edited = {**plan.values, "MODEL_HOST_PATH": "/data/target", "DRAFTER_HOST_PATH": "/data/drafter", **changes}
    return plan_deployment(facts, Choice(edited=edited), CATALOG)


def files(plan: Plan, replicas: tuple[int, int] = (2, 2)) -> dict[str, str]:
    return dict(files_of(Deployment(Path("/srv/box")), plan, RELEASE, replicas))


def config(plan: Plan, replicas: tuple[int, int] = (2, 2)) -> dict[str, Any]:
    (one,) = yaml.safe_load(files(plan, replicas)["serve.yaml"])["applications"][0]["args"]["llm_configs"]
    return dict(one)


def reasons(plan: Plan) -> list[str]:
    return [reason for reason, _ in obstacles(plan, RELEASE)]


def vllm_profiles() -> list[str]:
    known = CATALOG.engines
    return [
        name
        for name, one in CATALOG.profiles.items()
        if any(known[choice.release].engine == "vllm" for choice in one.engines)
    ]


def test_the_arguments_are_those_of_the_plan() -> None:
    plan = on("cpu")
    kwargs = config(plan)["engine_kwargs"]
    assert kwargs["max_model_len"] == plan.settings.max_model_len
    assert kwargs["enable_prefix_caching"] is False
    assert kwargs["enforce_eager"] is True
    drafts = {"method": "dflash", "model": "/data/drafter", "num_speculative_tokens": plan.settings.draft_tokens}
    assert kwargs["speculative_config"] == drafts
    # nothing is fetched that a request names
    assert kwargs["allowed_media_domains"] == ["no-remote-media.invalid"]
    assert kwargs.keys().isdisjoint({"host", "port", "middleware", "served_model_name", "model"})


@pytest.mark.parametrize("profile", vllm_profiles())
def test_the_plans_of_the_catalog_can_be_exported_or_say_why_not(profile: str) -> None:
    plan = on(profile)
    if plan.engine.engine != "vllm" or plan.settings.several_machines:
        assert reasons(plan)
        return
    assert set(arguments(plan, RELEASE)) <= RELEASE.arguments
    needed = plan.pair.family.needs.get("vllm")
    assert all("needs vLLM" in reason and needed for reason in reasons(plan))


@pytest.mark.parametrize(
    ("words", "read"),
    [
        (["--max-model-len", "4096"], {"max_model_len": 4096}),
        (["--gpu-memory-utilization=0.9"], {"gpu_memory_utilization": 0.9}),
        (["--no-enable-prefix-caching"], {"enable_prefix_caching": False}),
        (["--trust-remote-code", "--kv-cache-dtype", "fp8"], {"trust_remote_code": True, "kv_cache_dtype": "fp8"}),
        (["--limit-mm-per-prompt", '{"image": 4}'], {"limit_mm_per_prompt": {"image": 4}}),
        (["--allowed-media-domains", "a.example"], {"allowed_media_domains": ["a.example"]}),
        (["--allowed-media-domains", "a.example", "b.example"], {"allowed_media_domains": ["a.example", "b.example"]}),
        (["--host", "0.0.0.0", "--port", "8000", "--middleware", "a.B"], {}),
    ],
)
def test_words_of_a_command_line_become_arguments(words: list[str], read: dict[str, Any]) -> None:
    assert dict(named(words, RELEASE.arguments)) == read


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"NODES": "2", "MASTER_ADDR": "10.0.0.1", "NODE_RANK": "0"}, "a replica is one machine"),
        ({"IDLE_MINUTES": "10"}, "do not sleep"),
        ({"SERVED_MODEL_NAME": "a b"}, "one name"),
        ({"KV_CACHE_DTYPE": "octave_k3v4"}, "no KV cache of type octave_k3v4"),
        ({"EXTRA_ARGS": "--of-a-later-release 1"}, "no argument --of-a-later-release"),
    ],
)
def test_what_rays_vllm_cannot_do_is_refused_with_the_reason(changes: dict[str, str], reason: str) -> None:
    assert any(reason in said for said in reasons(on("h100", **changes)))


@pytest.mark.parametrize("architecture", ["DFlash9DraftModel", "DSparkOfTomorrow"])
def test_a_drafter_that_rays_vllm_does_not_load_is_refused_unless_it_is_off(architecture: str) -> None:
    plan = on("h100")
    drafter = {"architectures": [architecture]}
    other = replace(plan, checkpoints=replace(plan.checkpoints, drafter=drafter))
    assert any(architecture in reason and RELEASE.vllm in reason for reason in reasons(other))
    off = on("h100", DFLASH_DRAFTER="off")
    assert reasons(replace(off, checkpoints=other.checkpoints)) == []


@pytest.mark.parametrize("engine", ["llamacpp", "sglang"])
def test_other_engines_are_refused(engine: str) -> None:
    profile = "cpu" if engine == "llamacpp" else "h100"
    plan = plan_deployment(made_of(CATALOG.profile(profile)), Choice(profile=profile, engine=engine), CATALOG)
    (reason,) = reasons(plan)
    assert reason == f"it runs vLLM only, and this deployment {plan.engine.title}"


def test_a_replica_has_the_gpus_of_the_box_on_one_machine() -> None:
    two = plan_deployment(
        machine(*(replace(RTX_3090, index=index) for index in range(2))), Choice(engine="vllm"), CATALOG
    )
    assert two.settings.tensor_parallel_size == 2
    placed = config(two)["placement_group_config"]
    assert placed == {"bundles": [{"CPU": 1, "GPU": 1}] * 2, "strategy": "STRICT_PACK"}
    assert config(two)["accelerator_config"] == {"kind": "gpu"}
    assert config(on("cpu"))["accelerator_config"] == {"kind": "cpu"}
    assert config(on("cpu"))["runtime_env"]["env_vars"]["VLLM_CPU_KVCACHE_SPACE"]


def test_the_prefix_aware_router_is_there_where_prefixes_are_cached() -> None:
    router = "request_router_config"
    assert router not in config(on("cpu"))["deployment_config"]
    cached = config(on("h100", ENABLE_PREFIX_CACHING="on", MAX_NUM_SEQS="16"))["deployment_config"]
    assert cached[router]["request_router_class"].endswith("PrefixCacheAffinityRouter")
    assert cached[router]["request_router_kwargs"]["imbalanced_threshold"] == 16


def test_replicas_are_a_number_or_follow_the_requests() -> None:
    plan = on("h100", MAX_NUM_SEQS="16")
    assert config(plan, replicas_in("3"))["deployment_config"]["num_replicas"] == 3
    followed = config(plan, replicas_in("1-4"))["deployment_config"]
    scaling = {"min_replicas": 1, "max_replicas": 4, "target_ongoing_requests": 16}
    assert followed["autoscaling_config"] == scaling
    assert "num_replicas" not in followed


@pytest.mark.parametrize("text", ["", "0", "4-1", "-1", "two", "1-", "99999", "1-2-3", "\u0664"])
def test_other_numbers_of_replicas_are_refused(text: str) -> None:
    with pytest.raises(BadInput, match="is not a number of replicas"):
        replicas_in(text)


def test_the_gateway_gets_its_settings_and_the_place_of_the_keys() -> None:
    plan = on("h100", REASONING_PARSER="qwen3", MAX_BODY_MIB="8")
    written = dict(line.split("=", 1) for line in shlex.split(files(plan)["ray.env"]))
    assert written["REASONING_PARSER"] == "qwen3"
    assert written["MAX_BODY_MIB"] == "8"
    assert written[SECRETS_FILE] == "/srv/box/.env"
    assert written[KEYS_FILE] == "/srv/box/.dflash/keys/keys.json"
    assert written["RAY_AUTH_MODE"] == "token"
    assert {field.name for field in SETTINGS if plan.values.get(field.name)} <= set(environment(plan, ""))


@pytest.mark.parametrize("replicas", [(2, 2), (1, 4)])
@pytest.mark.parametrize("profile", ["cpu", "h100", "rtx-3090-x2"])
def test_rayservice_is_valid_for_kuberay(profile: str, replicas: tuple[int, int]) -> None:
    if profile == "rtx-3090-x2":
        facts = machine(*(replace(RTX_3090, index=index) for index in range(2)))
        plan = plan_deployment(facts, Choice(engine="vllm"), CATALOG)
    else:
        plan = on(profile)
    written = files(plan, replicas)
    service = yaml.safe_load(written["rayservice.yaml"])
    Draft202012Validator(KUBERAY).validate(service)
    inside, outside = yaml.safe_load(service["spec"]["serveConfigV2"]), yaml.safe_load(written["serve.yaml"])
    assert inside["applications"] == outside["applications"]
    cluster = service["spec"]["rayClusterConfig"]
    (worker,) = cluster["workerGroupSpecs"]
    assert (worker["minReplicas"], worker["maxReplicas"]) == replicas
    (pod,) = worker["template"]["spec"]["containers"]
    mounted = {mount["mountPath"] for mount in pod["volumeMounts"]}
    (one,) = inside["applications"][0]["args"]["llm_configs"]
    assert one["model_loading_config"]["model_source"] in mounted
    assert one["engine_kwargs"]["speculative_config"]["model"] in mounted
    # only the proxy's pod has the keys
    assert [volume["name"] for volume in worker["template"]["spec"]["volumes"]] == ["weights"]
    gpus = 0 if plan.engine.cpu else plan.settings.tensor_parallel_size or 1
    assert pod.get("resources", {}).get("limits", {}).get("nvidia.com/gpu", 0) == gpus


def test_an_unknown_field_of_rayservice_is_noticed() -> None:
    service = yaml.safe_load(files(on("cpu"))["rayservice.yaml"])
    service["spec"]["rayClusterConfig"]["headGroupSpec"]["replicas"] = 2
    assert list(Draft202012Validator(KUBERAY).iter_errors(service))


def test_each_release_of_ray_names_its_vllm_and_the_newest_what_it_can_do() -> None:
    releases = load_ray_releases()
    assert [one.ray for one in releases] == sorted(one.ray for one in releases)
    assert RELEASE.drafters >= {"DFlashDraftModel", "DFlash2DraftModel"}
    assert {"max_model_len", "speculative_config", "reasoning_parser"} <= RELEASE.arguments
