"""The options that EXTRA_ARGS is checked against are those of the releases' own parsers."""

from dflash_deploy.catalog.load import load_catalog
from tests.support.parsers import Rejections
from tools.options import options


def test_the_catalog_has_the_options_of_every_parser(rejections: Rejections) -> None:
    for release, known in options(rejections).items():
        assert load_catalog().options[release] == set(known), f"{release}: run `make options`"
