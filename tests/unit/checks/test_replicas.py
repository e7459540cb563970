"""Replicas that differ are named; ties between tokens are no difference."""

from dflash_deploy.checks.lossless import PlainToken
from dflash_deploy.checks.replicas import ReplicaAnswer, same_answers, same_values


def answer(*tokens: str, likely: float = -9.0) -> ReplicaAnswer:
    """An answer in which `?` is this likely at each place."""
    return ReplicaAnswer([PlainToken(token, {token: -0.1, "?": likely}) for token in tokens])


def test_the_same_values_pass() -> None:
    found = same_values("same image", "the image", {"a": "1", "b": "1"}, "hint")
    assert (found.status, found.got, found.hint) == ("passed", "1 on all 2", "")


def test_the_one_that_differs_from_most_is_named() -> None:
    found = same_values("same image", "the image", {"a": "1", "b": "2", "c": "1"}, "hint")
    assert (found.status, found.got, found.hint) == ("failed", "b 2; the others 1", "hint")


def test_of_two_both_are_named() -> None:
    found = same_values("same image", "the image", {"a": "1", "b": "2"}, "hint")
    assert (found.status, found.got) == ("failed", "a 1, b 2")


def test_the_end_of_a_long_value_is_shown() -> None:
    found = same_values("same image", "the image", {"a": "x" * 100 + "1", "b": "x" * 100 + "1"}, "")
    assert found.got == f"…{'x' * 79}1 on all 2"


def test_another_answer_is_named_with_its_first_token() -> None:
    found = same_answers({"a": answer("one ", "two"), "b": answer("one ", "2"), "c": answer("one ", "two")}, "hint")
    assert found.status == "failed"
    assert found.got == "b: token 2 is `2` here, `two` at a (8.9 behind)"
    assert found.hint == "hint"


def test_a_tie_is_the_same_answer() -> None:
    answers = {"a": answer("one ", "two", likely=-0.5), "b": answer("one ", "?"), "c": answer("one ", "two")}
    assert same_answers(answers, "hint").status == "passed"


def test_an_answer_that_ends_earlier_is_named() -> None:
    found = same_answers({"a": answer("one ", "two"), "b": answer("one ")}, "hint")
    assert found.got == "b: the answer ends after token 1, at a after token 2"
