"""On each profile's GPU the real vLLM makes the configuration that the plan says: nothing is refused or replaced."""

from collections.abc import Mapping

import pytest

from dflash_deploy.plan.result import Plan
from tests.support.decisions.asked import asked, mended, plans, rooms, window_is_known, wrong
from tests.support.decisions.figures import statements
from tests.support.decisions.warned import EXPLAINED, explanation
from tests.support.parsers.fetch import REPOSITORY


def named(plan: Plan) -> str:
    return f"{plan.profile.name} x {plan.pair.name}"


def wanted(plan: Plan) -> Mapping[str, str]:
    """What the plan says, in vLLM's names. A backend that is left to the engine is not compared."""
    settings = plan.settings
    cache = settings.kv_cache_dtype or "auto"
    if cache == "auto" and plan.pair.target.forced_fp8_kv:
        cache = "fp8_e4m3"
    said = {
        "attention_backend": settings.attention_backend,
        "drafter_attention_backend": settings.dflash_attention_backend,
        "kv_cache_dtype": cache,
        "drafter_kv_cache_dtype": settings.dflash_kv_cache_dtype or cache,
        "max_model_len": settings.max_model_len,
        "max_num_seqs": settings.max_num_seqs,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "prefix_caching": settings.enable_prefix_caching,
        "draft_tokens": settings.draft_tokens,
        "speculative_method": "dflash",
        "cudagraph_mode": "NONE" if settings.enforce_eager else "FULL_AND_PIECEWISE",
        # the catalog's `mixed-drafters` and DFlash2 need it
        "model_runner": "V2",
    }
    return {name: str(value) for name, value in said.items() if value not in {None, ""}}


def test_every_plan_is_covered() -> None:
    assert len(plans()) > 300
    assert {plan.profile.name for plan, _ in asked()} == {plan.profile.name for plan in plans()}
    assert {plan.pair.family.name for plan, _ in asked()} == {plan.pair.family.name for plan in plans()}


def test_vllm_refuses_no_plan() -> None:
    refused = {named(plan): (decision.refused, decision.where) for plan, decision in asked() if decision.refused}
    assert refused == {}


def test_vllm_decides_what_the_plan_says() -> None:
    differs = {}
    for plan, decision in asked():
        said = wanted(plan)
        got = {name: decision.decided.get(name) for name in said}
        if not decision.refused and got != said:
            differs[named(plan)] = {name: (said[name], got[name]) for name in said if said[name] != got[name]}
    assert differs == {}


def test_the_backends_that_were_mended_are_seen() -> None:
    # else this tier would no longer show that a refused backend is replaced
    assert {plan.pair.family.name for plan, _ in asked() if mended(plan)} >= {
        "gemma-4-31b-it",
        "gpt-oss-20b",
        "kimi-k2.5",
    }


def test_what_vllm_warns_of_is_known() -> None:
    said = [warning for _, decision in asked() for warning in decision.warnings]
    # a run that keeps no warnings would compare nothing
    assert {explanation(warning) for warning in said} >= set(EXPLAINED.values())
    assert {warning for warning in said if explanation(warning) is None} == set()


def test_the_plan_s_memory_is_what_vllm_allocates() -> None:
    compared = list(rooms())
    assert len(compared) > 200
    differs = {}
    for plan, planned, allocated in compared:
        known = window_is_known(plan)
        if known and planned != pytest.approx(allocated, rel=1e-3):
            differs[named(plan)] = (planned, allocated)
        # a drafter whose config.json could not be read: every token is counted, so there is room for more
        if not known and not 0.9 * allocated < planned <= allocated:
            differs[named(plan)] = (planned, allocated)
    assert differs == {}


def test_the_pages_have_the_figures_of_this_run() -> None:
    for page, sentences in statements().items():
        written = " ".join((REPOSITORY / page).read_text(encoding="utf-8").split())
        assert [sentence for sentence in sentences if sentence not in written] == [], page


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("gemma", "mm_prefix (PrefixLM bidirectional attention) requires FlashAttention v4"),
        ("sinks", "sink not supported on compute capability < 9.0"),
        ("context", "max_model_len"),
        ("cache", "kv_cache_dtype not supported"),
        ("fp8", "kv_cache_dtype not supported"),
    ],
)
def test_what_a_rule_refuses_is_refused_by_vllm_too(case: str, says: str) -> None:
    assert says in wrong()[case].refused, wrong()[case]
