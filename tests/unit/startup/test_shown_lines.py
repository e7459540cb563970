"""Of an unknown failure the lines are shown that tell it, whatever their shape."""

import pytest

from dflash_deploy.diagnosis.diagnose import ProcessEnd
from tests.unit.startup.explained import FAILED, explained

CORE = "(EngineCore pid=274) ERROR 08-03 17:46:10 [core.py:1136] "
MOON = "ValueError: the moon is full"
SHAPES_OF_MOON = (
    MOON,
    "    " + MOON,
    "engine-1  | " + MOON,
    "Error: " + MOON,
    "error: RuntimeError: " + MOON,
    "2026/11/23 10:00:01 worker[7] " + MOON,
    '{"message": "' + MOON + '", "ts": 1}',
    '{"level":"error","msg":"' + MOON + '"}',
    "(EngineCore pid=274) " + MOON,
    "[rank0]: " + MOON,
    "WARNING 08-03 17:46:10 [x.py:1] " + MOON,
    "INFO 08-03 17:46:10 [x.py:1] " + MOON,
)


@pytest.mark.parametrize("line", SHAPES_OF_MOON)
def test_an_exception_of_any_shape_is_shown_if_it_is_the_only_line(line: str) -> None:
    found = explained([line], FAILED)
    assert found.diagnosis is None
    assert any("the moon is full" in shown for shown in found.lines)


@pytest.mark.parametrize("line", SHAPES_OF_MOON[:-2])
def test_an_exception_of_any_shape_is_shown_among_other_errors(line: str) -> None:
    others = [f"{CORE}error: the {place} sea is dry" for place in ("first", "second", "third", "fourth")]
    for log in ([line, *others], [*others[:2], line, *others[2:]], [*others, line]):
        found = explained([*log, *(f"INFO 08-03 17:46:{n:02} [x.py:1] shutting down" for n in range(9))], FAILED)
        assert found.diagnosis is None
        assert any("the moon is full" in shown for shown in found.lines)


def test_the_last_words_and_those_before_the_first_error_are_shown() -> None:
    before = ["slot 0: new prompt", "slot 0: prompt is cut to the context"]
    errors = [f"llama_decode: failed to decode the {name} batch" for name in ("red", "green", "blue", "black")] * 5
    found = explained([*before, *errors, "Segmentation fault (core dumped)"], ProcessEnd(139), "llamacpp")
    assert found.diagnosis is None
    assert {*before, errors[0], "Segmentation fault (core dumped)"} <= set(found.lines)
    assert len(found.lines) <= 12
