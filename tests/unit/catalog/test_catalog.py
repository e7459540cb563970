"""The packaged data is whole, and says where it comes from."""

import pytest
from pydantic import ValidationError

from dflash_deploy.assets import asset
from dflash_deploy.catalog import ModelPair, Profile, load_catalog
from dflash_deploy.catalog.settings import setting_names
from dflash_deploy.errors import UnknownPair, UnknownProfile

CATALOG = load_catalog()


@pytest.mark.parametrize("entry", [*CATALOG.profiles.values(), *CATALOG.pairs.values()], ids=lambda entry: entry.name)
def test_every_setting_that_is_chosen_exists(entry: Profile | ModelPair) -> None:
    assert set(entry.settings) <= set(setting_names())


@pytest.mark.parametrize("pair", CATALOG.pairs.values(), ids=lambda pair: pair.name)
def test_weights_come_from_one_place_and_draft_tokens_fit_the_block(pair: ModelPair) -> None:
    for weights in (pair.target, pair.drafter):
        assert (weights.repo is None) != (weights.bundled is None)
        if weights.bundled:
            assert asset(weights.bundled).is_dir()
    assert pair.settings["DFLASH_NUM_SPEC_TOKENS"].value == pair.drafter.block_size - 1


@pytest.mark.parametrize("profile", CATALOG.profiles.values(), ids=lambda profile: profile.name)
def test_compose_fragments_exist(profile: Profile) -> None:
    for name in profile.compose:
        assert asset("compose", name).is_file()


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
