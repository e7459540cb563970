"""Questions to a host are asked again before they are judged, and not for ever."""

import pytest

from dflash_deploy.errors import DeployError, HostNotTrusted, HostUnfit, HostUnreachable
from dflash_deploy.features.fleet.settings import PAUSE, TRIES, ask_again

LOST = HostUnreachable("a: lost", hint="x")


class Host:
    """Answers from a list; an error in it is raised."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.waited: list[float] = []

    def ask(self) -> object:
        answer = self.answers.pop(0)
        if isinstance(answer, DeployError):
            raise answer
        return answer


@pytest.mark.parametrize(
    ("answers", "expected", "left"),
    [
        ((1, 2), 1, 1),
        ((LOST, 2, 3), 2, 1),
        ((HostUnfit("a: x", hint="x"), LOST, 3), 3, 0),
        ((0, 0, 0, 1), 0, 1),
        ((0, LOST, 5), 5, 0),
    ],
)
def test_the_first_answer_that_is_enough_counts(answers: tuple[object, ...], expected: object, left: int) -> None:
    host = Host(*answers)
    assert ask_again(host.ask, enough=bool, wait=host.waited.append) == expected
    assert len(host.answers) == left
    assert host.waited == [PAUSE] * (len(answers) - left - 1)


def test_the_last_error_is_raised() -> None:
    host = Host(*[LOST] * TRIES, 1)
    with pytest.raises(HostUnreachable):
        ask_again(host.ask, wait=host.waited.append)
    assert host.answers == [1]


def test_a_host_that_is_not_trusted_is_not_asked_again() -> None:
    host = Host(HostNotTrusted("a: its key has changed", hint="x"), 1)
    with pytest.raises(HostNotTrusted):
        ask_again(host.ask, wait=host.waited.append)
    assert host.waited == []
