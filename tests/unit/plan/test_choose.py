"""The model that a plan takes: by a stated order, on each profile's hardware and on each card of the catalog."""

from dataclasses import replace
from itertools import islice, pairwise
from typing import Any

import pytest

from dflash_deploy.catalog.hardware import Profile
from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.catalog.models import ModelPair
from dflash_deploy.plan.choose import CRITERIA, ORDERS, RankedPair, best, decided_by
from dflash_deploy.plan.memory import GIB
from dflash_deploy.plan.result import GOALS, Choice, Plan
from dflash_deploy.rules.table import ABOUT_THIS_MACHINE, plan_deployment
from dflash_deploy.serve.settings import Goal
from tests.support.machines import MACHINES, made_of

CATALOG = load_catalog()
ON_GPUS = [profile for profile in CATALOG.profiles.values() if profile.gpus]
CARDS = [CATALOG.profile(model.name) for model in CATALOG.gpu_models if model.name not in CATALOG.profiles]

# Cards of 16 GB, too small for any target of 27 G parameters: half of the context is what fits.
SMALL = {"rtx-5060-ti", "rtx-5080"}


def name_of(profile: Profile) -> str:
    return profile.name


def planned(profile: Profile, **choice: Any) -> Plan:
    facts = MACHINES.get(profile.name) or made_of(profile)
    return plan_deployment(facts, replace(Choice(profile=profile.name), **choice), CATALOG)


@pytest.mark.parametrize("profile", [*ON_GPUS, *CARDS], ids=name_of)
def test_each_default_is_safe_and_useful(profile: Profile) -> None:
    plan = planned(profile)
    settings, target = plan.settings, plan.pair.target
    assert target.aligned
    assert target.usable
    assert plan.pair.sees
    assert not plan.engine.image_on(profile.hardware.architecture).moves
    assert not any(bug.changes_answers for bug in plan.engine.open_bugs)
    assert "trust-remote-code" not in " ".join(plan.settings.extra_args)
    shared = profile.gpus * profile.hardware.memory_gib >= 64
    least = (131072, 8) if shared else (31744 if profile.name in SMALL else 65536, 1)
    assert (settings.max_model_len or 0) >= least[0]
    assert (settings.max_num_seqs or 0) >= least[1]
    assert plan.memory is not None
    assert plan.memory.fits
    assert {finding.id for finding in plan.errors} <= ABOUT_THIS_MACHINE
    newest = profile.name in SMALL or plan.pair.family.name in {"qwen3.8-27b", "muse-glimmer-30b"}
    assert newest, plan.pair.name


@pytest.mark.parametrize(
    ("profile", "pair", "expected"),
    [
        ("dgx-spark", "qwen3.8-27b-nvfp4-nvidia", {"DFLASH_NUM_SPEC_TOKENS": "7", "KV_CACHE_DTYPE": "fp8"}),
        ("dgx-spark", "qwen3.8-27b-nvfp4-nvidia", {"ENABLE_PREFIX_CACHING": "on", "GPU_MEMORY_UTILIZATION": "0.7"}),
        ("dgx-spark", "qwen3.8-27b-nvfp4-nvidia", {"DFLASH_ENGINE": "vllm-0.33", "MAX_NUM_SEQS": "8"}),
        ("dgx-spark-x2", "qwen3.8-27b-nvfp4-nvidia", {"ENFORCE_EAGER": "", "KV_CACHE_DTYPE": "fp8"}),
        ("rtx-3090", "qwen3.8-27b-gguf", {"KV_CACHE_DTYPE": "q8_0", "MAX_MODEL_LEN": "65536"}),
        ("rtx-3090-x4", "qwen3.8-27b-int4-autoround", {"DFLASH_NUM_SPEC_TOKENS": "7"}),
        ("a100", "qwen3.8-27b-fp8", {"MAX_MODEL_LEN": "131072", "MAX_NUM_SEQS": "8"}),
        ("h100-x2", "qwen3.8-27b-fp8", {}),
        ("rtx-5090", "qwen3.8-27b-int4-w4a16-drafter", {"KV_CACHE_DTYPE": "fp8"}),
        ("rtx-pro-6000", "qwen3.8-27b-nvfp4-nvidia", {}),
        ("cpu", "tiny", {}),
    ],
)
def test_what_comes_out(profile: str, pair: str, expected: dict[str, str]) -> None:
    values = planned(CATALOG.profiles[profile]).values
    assert values["DFLASH_PAIR"] == pair
    assert {name: values[name] for name in expected} == expected


@pytest.mark.parametrize("profile", ["dgx-spark", "rtx-3090", "h100", "rtx-5080"])
@pytest.mark.parametrize("goal", [None, *GOALS])
def test_the_order_is_the_stated_one(profile: str, goal: Goal | None) -> None:
    found = list(islice(best(CATALOG.profile(profile), CATALOG, Choice(goal=goal)), 12))
    keys = [[CRITERIA[name](one) for name in ORDERS[goal]] for one in found]
    assert keys == sorted(keys)
    assert not any(one.pair.toy for one in found)


def test_a_goal_changes_the_order() -> None:
    profile = CATALOG.profiles["h100"]
    speeds = {goal: next(best(profile, CATALOG, Choice(goal=goal))) for goal in (None, "throughput", "context")}
    usual = speeds[None]
    assert speeds["throughput"].speed >= usual.speed
    assert speeds["context"].sizing.max_model_len >= usual.sizing.max_model_len
    assert all(one.pair.sees for one in islice(best(profile, CATALOG, Choice(goal="vision")), 5))


@pytest.mark.parametrize("card", ["a40", "l40", "l40s", "rtx-a6000", "rtx-6000-ada"])
def test_a_card_with_room_for_two_requests_serves_them_at_the_same_time(card: str) -> None:
    plan = planned(CATALOG.profile(card))
    assert (plan.settings.max_num_seqs or 0) >= 2
    assert (plan.settings.max_model_len or 0) >= 131072
    # another engine with the same base model is one option away, and the reason is printed
    other = next(one for one in best(plan.profile, CATALOG) if one.engine.engine == "llamacpp" and not one.unsafe)
    assert decided_by(next(best(plan.profile, CATALOG)), other) == "shared"


@pytest.mark.parametrize("profile", ["h100", "h100-pcie", "h20"])
@pytest.mark.parametrize("pair", ["qwen3.5-27b-bf16", "qwen3.8-27b-bf16"])
def test_a_share_that_leaves_no_room_for_a_sequence_is_raised(profile: str, pair: str) -> None:
    plan = planned(CATALOG.profile(profile), engine="sglang", model=pair)
    share, fit, memory = plan.settings.gpu_memory_utilization, plan.memory, plan.profile.hardware.memory_gib * GIB
    assert not {finding.id for finding in plan.findings} & {"weights-do-not-fit", "sequence-does-not-fit"}
    assert share is not None
    assert fit is not None
    assert 0.75 < share <= plan.profile.hardware.most_utilisation
    # what SGLang's share does not count still has its room: activations, graphs, and 8 GiB for images
    assert memory * share + fit.reserve_bytes + 8 * GIB <= memory
    reasons = {one.name: one.reason for one in plan.decisions}
    assert "remain for activations" in reasons["GPU_MEMORY_UTILIZATION"]


@pytest.mark.parametrize(("profile", "share"), [("b200", 0.75), ("rtx-5090", 0.88), ("rtx-3090-x2", 0.85)])
def test_a_published_share_in_which_a_sequence_fits_stays(profile: str, share: float) -> None:
    assert planned(CATALOG.profile(profile), engine="sglang").settings.gpu_memory_utilization == share


def with_target(name: str, **changes: object) -> ModelPair:
    pair = CATALOG.pairs[name]
    return ModelPair(pair.family, pair.target.model_copy(update=changes))


def first_with(pair: ModelPair, profile: str = "h100") -> RankedPair:
    catalog = replace(CATALOG, pairs={**CATALOG.pairs, pair.name: pair})
    return next(best(catalog.profiles[profile], catalog))


@pytest.mark.parametrize(
    "changes",
    [
        {"notice": "The safety alignment of this target has been removed."},
        {"licence": "CC BY-NC-ND 4.0"},
        {"licence": "Llama 3.1 Community License"},
        {"gated": True},
    ],
)
def test_what_is_not_safe_is_no_default_and_says_why(changes: dict[str, object]) -> None:
    usual = next(best(CATALOG.profiles["h100"], CATALOG)).pair.name
    changed = with_target(usual, **changes)
    assert first_with(changed).pair.name != usual
    catalog = replace(CATALOG, pairs={changed.name: changed}, speeds=())
    assert next(best(catalog.profiles["h100"], catalog)).unsafe


def test_a_moving_tag_is_no_default() -> None:
    usual = next(best(CATALOG.profiles["h100"], CATALOG))
    image = {"x86_64": usual.engine.base_images["x86_64"].model_copy(update={"tag": "vllm/vllm-openai:latest"})}
    engine = usual.engine.model_copy(update={"base_images": image})
    catalog = replace(CATALOG, engines={**CATALOG.engines, engine.name: engine})
    first = next(best(catalog.profiles["h100"], catalog))
    assert first.engine.name != engine.name
    assert first.unsafe == ""


def test_each_next_model_says_what_it_is_behind_in() -> None:
    found = list(islice(best(CATALOG.profiles["rtx-pro-6000"], CATALOG), 6))
    assert [decided_by(*two) for two in pairwise(found)].count("") < 5
    assert decided_by(found[0], found[0]) == ""


@pytest.mark.parametrize("profile", ["a100", "rtx-5090", "h100-x2", "rtx-3090-x2"])
def test_more_context_is_to_be_had(profile: str) -> None:
    usual = planned(CATALOG.profiles[profile]).settings
    longest = planned(CATALOG.profiles[profile], goal="context").settings
    assert (longest.max_model_len or 0) >= (usual.max_model_len or 0)
    bounded = planned(CATALOG.profiles[profile], model="qwen3.5-27b-bf16", goal="context")
    if not bounded.errors:
        assert bounded.settings.kv_cache_dtype in {"auto", "fp8"}


def test_a_smaller_cache_takes_backends_that_read_it() -> None:
    # on Ampere only FlashInfer reads FP8, with drafts too
    plan = planned(CATALOG.profiles["a100"], model="qwen3.5-27b-bf16", goal="context")
    settings = plan.settings
    assert settings.kv_cache_dtype == "fp8"
    assert settings.attention_backend == settings.dflash_attention_backend == "FLASHINFER"
    # unasked, the backends of the profile stay
    assert planned(CATALOG.profiles["a100"], model="qwen3.5-27b-bf16").settings.attention_backend == "FLASH_ATTN"
