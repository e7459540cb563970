"""The curves of `capacity` as a page, and the lines at a terminal."""

import re
from collections.abc import Mapping
from functools import cache, partial

import pytest

from dflash_deploy.features.capacity import simulation
from dflash_deploy.features.capacity.load_text import UserLoad
from dflash_deploy.features.capacity.page import capacity_page
from dflash_deploy.features.capacity.simulation import Service, Sized, simulate, size

ASKED = UserLoad(40, 10.0, 500, 100, 1.0, 1.0, None)
SERVICES = {
    "with drafts": Service(((1.0, 0.03), (16.0, 0.08)), 4.0, 0.0002, 0.01, 16, 8192),
    "without drafts": Service(((1.0, 0.02), (16.0, 0.03)), 1.0, 0.0002, 0.01, 16, 8192),
}


@cache
def sides() -> Mapping[str, Sized]:
    with pytest.MonkeyPatch.context() as patch:
        # the page shows any figures
        patch.setattr(simulation, "simulate", partial(simulate, requests=200))
        return {name: size(service, ASKED) for name, service in SERVICES.items()}


@cache
def page() -> str:
    return capacity_page("Qwen <27B>: 40 users", ASKED, sides(), ("with drafts: 1 replica & more",))


def test_every_simulated_figure_is_a_mark_and_a_cell() -> None:
    marks = re.findall(r'<circle [^>]*data-series="([^"]*)" data-x="(\d+)" data-y="([^"]*)"', page())
    for name, sized in sides().items():
        for one in sized.curve:
            for value in (one.ttft_p95_s, one.answer_p95_s, one.tokens_per_s, one.sequences):
                assert (name, str(one.users), repr(value)) in marks
    assert len(marks) == 4 * sum(len(sized.curve) for sized in sides().values())


def test_the_goal_is_a_level_in_its_plot_only() -> None:
    assert page().count('class="level"') == 1
    assert "TTFT, 95th percentile (goal: 1 s)" in page()


def test_texts_are_escaped_and_nothing_is_loaded() -> None:
    assert "Qwen &lt;27B&gt;" in page()
    assert "1 replica &amp; more" in page()
    assert "<script" not in page()
    assert "http" not in page().replace("http-equiv", "")
