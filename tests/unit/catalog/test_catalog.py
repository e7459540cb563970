"""The packaged data is whole, and says where it comes from."""

from collections.abc import Iterator

import pytest
from pydantic import ValidationError

from dflash_deploy.assets import asset
from dflash_deploy.catalog.hardware import Profile
from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.catalog.models import ModelPair
from dflash_deploy.catalog.read import CatalogSetting
from dflash_deploy.catalog.settings import all_setting_names, passed_on, setting_names
from dflash_deploy.errors import UnknownEngine, UnknownPair, UnknownProfile
from dflash_deploy.serve.engines import ENGINES
from tests.support.rows import each_of

CATALOG = load_catalog()


def choices(profile: Profile) -> Iterator[tuple[str, CatalogSetting]]:
    yield from profile.settings.items()
    for engine in profile.engines:
        yield from engine.settings.items()


@each_of(CATALOG.profiles.values(), name=lambda profile: profile.name)
def test_every_setting_of_a_profile_exists_and_says_why(profile: Profile) -> None:
    for name, choice in choices(profile):
        assert name in all_setting_names() or passed_on(name)
        assert choice.reason
    for engine in profile.engines:
        known = setting_names(CATALOG.engines[engine.release].engine)
        assert set(engine.settings) <= set(known)


@each_of(CATALOG.pairs.values(), name=lambda pair: pair.name)
def test_a_pair_fits_together(pair: ModelPair) -> None:
    shape, drafter = pair.shape, pair.drafter
    for weights in (pair.target, drafter):
        assert (weights.repo is None) != (weights.bundled is None)
        assert weights.source or weights.bundled
        if weights.bundled:
            assert asset(weights.bundled).is_dir()
    assert (pair.target.quantisation == "gguf") == bool(pair.target.file)
    assert drafter.hidden_size in {None, shape.hidden_size}
    assert all(layer < shape.layers for layer in drafter.target_layer_ids)
    kinds = (shape.full_attention, shape.sliding_attention, shape.latent_attention, shape.linear_attention)
    assert sum(kind.layers for kind in kinds if kind is not None) in {0, shape.layers}
    assert pair.family.source


def test_all_hardware_that_was_promised_is_there() -> None:
    spark, cards = {"dgx-spark", "dgx-spark-x2"}, {"rtx-3090", "rtx-3090-x2", "rtx-3090-x4", "rtx-5090", "rtx-pro-6000"}
    more = {"rtx-4090", "rtx-5090-x2", "a100", "h100-x2", "h100-x4", "h100-x8", "h200-x8", "b200-x8"}
    assert set(CATALOG.profiles) >= spark | cards | more | {"h100", "h200", "b200", "cpu"}


def test_all_engines_and_entry_points_are_there() -> None:
    engines = CATALOG.engines.values()
    assert {engine.engine for engine in engines} == set(ENGINES) >= {"vllm", "sglang", "llamacpp", "llamacpp-buun"}
    aeon = {engine.entry_point for engine in engines if engine.name.startswith("aeon")}
    assert aeon == {"environment", "modes", "shell"}


def test_nothing_claims_to_be_verified_that_is_not_run_by_the_tests() -> None:
    verified = [entry.name for entry in CATALOG.profiles.values() if entry.evidence.state == "verified"]
    verified += [entry.name for entry in CATALOG.engines.values() if entry.evidence.state == "verified"]
    assert verified == ["cpu", "llamacpp-cpu-b11549", "vllm-cpu-0.32"]


def test_every_uncensored_target_has_a_notice() -> None:
    for pair in CATALOG.pairs.values():
        if any(word in f"{pair.name} {pair.target.repo}".lower() for word in ("uncensored", "heretic", "abliterated")):
            assert pair.target.notice, pair.name


def test_an_unknown_key_is_refused() -> None:
    data = CATALOG.profiles["cpu"].model_dump() | {"titel": "x"}
    with pytest.raises(ValidationError, match="titel"):
        Profile.model_validate(data)


def test_a_slip_gets_the_nearest_name() -> None:
    with pytest.raises(UnknownProfile) as refusal:
        CATALOG.profile("dgx-sparc")
    assert "did you mean dgx-spark?" in refusal.value.hint
    with pytest.raises(UnknownPair) as no_pair:
        CATALOG.pair("tinny")
    assert "did you mean tiny?" in no_pair.value.hint
    with pytest.raises(UnknownEngine) as no_engine:
        CATALOG.engine("vllm-0.34")
    assert "did you mean vllm-0.33?" in no_engine.value.hint


def test_a_pair_is_found_by_its_targets_repository() -> None:
    assert CATALOG.pair("Qwen/Qwen3.5-27B-FP8").name == "qwen3.5-27b-fp8"


@pytest.mark.parametrize("drafter", ["z-lab/Qwen3.5-27B-DFlash", "Z-Lab/qwen3.5-27b-dflash"])
def test_a_drafter_asked_for_as_a_model_is_refused_with_its_target(drafter: str) -> None:
    # the hub's own snippets for the drafter say `vllm serve "z-lab/Qwen3.5-27B-DFlash"`
    with pytest.raises(UnknownPair, match="` is a drafter") as refusal:
        CATALOG.pair(drafter)
    assert "--model qwen3.5-27b-" in refusal.value.hint
