"""What a host is, from the lines that it prints."""

import pytest

from dflash_deploy.errors import HostUnfit
from dflash_deploy.features.fleet.file import Fleet, FleetHost, Install
from dflash_deploy.features.fleet.prepare import ExaminedHost, Wheel, environment_of, judge_examined, parse_examined

HOST = FleetHost(name="a", address="x", user="me")
LINES = "home /home/me\nclock 1000\nsystem Linux aarch64\nfree 2048\n"
GOOD = ExaminedHost("/home/me", "Linux aarch64", 0, 2**30, ())


def test_facts_are_read_line_by_line() -> None:
    assert parse_examined(LINES, 990.4) == ExaminedHost("/home/me", "Linux aarch64", 10, 2048 * 1024, ())
    lacking = parse_examined(LINES + "lacks flock\nlacks mktemp\n", 1000)
    assert lacking is not None
    assert lacking.lacks == ("flock", "mktemp")


@pytest.mark.parametrize("text", ["", "Welcome!\n", LINES.replace("1000", "soon"), LINES.replace("free", "fre")])
def test_other_lines_are_none(text: str) -> None:
    assert parse_examined(text, 0.0) is None


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (ExaminedHost("/", "Darwin arm64", 0, 2**30, ()), "it runs Darwin arm64, not Linux"),
        (ExaminedHost("/", "Linux x86_64", 0, 2**30, ("flock",)), "flock is missing"),
        (ExaminedHost("/", "Linux x86_64", 3600, 2**30, ()), "its clock is 3600 s ahead of this machine's"),
        (ExaminedHost("/", "Linux x86_64", -900, 2**30, ()), "its clock is 900 s behind this machine's"),
        (ExaminedHost("/", "Linux x86_64", 0, 1000, ()), "its disk is full"),
    ],
)
def test_a_host_that_cannot_be_used_is_named(found: ExaminedHost, said: str) -> None:
    with pytest.raises(HostUnfit) as raised:
        judge_examined(HOST, found)
    assert raised.value.message == f"a: {said}"


def test_a_good_host_passes() -> None:
    judge_examined(HOST, GOOD)


def test_another_wheel_or_engine_gets_another_environment() -> None:
    def fleet(*extras: str) -> Fleet:
        return Fleet(install=Install(extras=extras), hosts=(HOST,))

    wheels = (None, Wheel("x.whl", b"", "1" * 64), Wheel("x.whl", b"", "2" * 64))
    names = {environment_of(fleet(*extras), wheel) for wheel in wheels for extras in ((), ("cpu",), ("llamacpp",))}
    assert len(names) == 9
    assert environment_of(fleet(), None).endswith("-index")
