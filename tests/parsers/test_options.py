"""The options that EXTRA_ARGS is checked against are those of the releases' own parsers."""

from dflash_deploy.catalog.options import options_of
from tests.support.parsers import Rejections
from tools.options import options


def test_the_catalog_has_the_options_of_every_parser(rejections: Rejections) -> None:
    for release, known in options(rejections).items():
        assert options_of(release) == set(known), f"{release}: run `make options`"
