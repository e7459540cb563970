"""An engine that accepts fewer drafts than the others is named."""

import pytest

from dflash_deploy.checks.acceptance import compared
from dflash_deploy.client.endpoint import added
from dflash_deploy.client.metrics import KeyUsage, Metrics, added_up
from dflash_deploy.serve.engines.counters import SpecCounters


@pytest.mark.parametrize(
    ("lengths", "named"),
    [
        ({"engine 1": 4.0, "engine 2": 4.2}, ""),
        ({"engine 1": 4.0, "engine 2": 1.4}, "engine 2"),
        ({"engine 1": 1.0, "engine 2": 4.0, "engine 3": 4.1}, "engine 1"),
    ],
)
def test_the_engine_that_differs_is_named(lengths: dict[str, float], named: str) -> None:
    found = compared(lengths)
    assert found.status == ("failed" if named else "passed")
    assert found.hint.startswith(named)
    assert all(name in found.got for name in lengths)


def test_counters_and_use_of_several_engines_are_added_up() -> None:
    one = Metrics("vllm", SpecCounters(2, 14, 6, (2, 1)), 8, 1, 0, 0.2)
    two = Metrics("vllm", SpecCounters(3, 21, 9, (3, 2)), 12, 2, 4, 0.7)
    assert added([one, two]) == Metrics("vllm", SpecCounters(5, 35, 15, (5, 3)), 20, 3, 4, 0.7)
    used = added_up([KeyUsage("a", {"200": 2, "401": 1}, 5, 6, 1), KeyUsage("a", {"200": 3}, 1, 2, 0), KeyUsage("b")])
    assert [
        (each.name, each.requests, each.prompt_tokens, each.generation_tokens, each.in_flight) for each in used
    ] == [
        ("a", {"200": 5, "401": 1}, 6, 8, 1),
        ("b", {}, 0, 0, 0),
    ]
