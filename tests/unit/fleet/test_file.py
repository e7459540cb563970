"""`fleet.yaml`: what is refused before anything reaches a host, and the documented example."""

from pathlib import Path

import pytest

from dflash_deploy.errors import FleetRefused
from dflash_deploy.features.fleet.operations import read_fleet

ROOT = Path(__file__).parents[3]


def test_the_example_is_two_sparks() -> None:
    fleet = read_fleet(ROOT / "docs" / "reference" / "fleet.yaml")
    assert [(host.name, host.rank, host.directory) for host in fleet.hosts] == [
        ("spark-a", 0, "dflash"),
        ("spark-b", 1, "dflash"),
    ]
    assert fleet.master_addr == "192.168.100.1"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hosts: []", "hosts"),
        ("hosts: [{name: a}]", "ssh"),
        ("hosts: [{name: a, ssh: b, colour: red}]", "colour"),
        # it would be an option of ssh
        ("hosts: [{name: a, ssh: -oProxyCommand=touch x}]", "ssh"),
        ("hosts: [{name: a, ssh: 'b c'}]", "ssh"),
        ("hosts: [{name: a, ssh: b, directory: -rf}]", "directory"),
        ("hosts: [{name: a, ssh: b, profile: --force}]", "profile"),
        ("hosts: [{name: a, ssh: b, rank: -1}]", "rank"),
        ("hosts: [{name: a, ssh: b}, {name: a, ssh: c}]", "two hosts have the same name"),
        ("hosts: [{name: a, ssh: b, rank: 0}, {name: c, ssh: d}]\nmaster_addr: 10.0.0.1", "needs the ranks 0 to 1"),
        ("hosts: [{name: a, ssh: b, rank: 0}, {name: c, ssh: d, rank: 1}]", "`master_addr`"),
        ("hosts: [{name: a, ssh: b}]\nmaster_addr: --help", "master_addr"),
        ("hosts: &a [*a]", "fleet.yaml"),
    ],
)
def test_what_is_not_valid_is_refused(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(text)
    with pytest.raises(FleetRefused) as refused:
        read_fleet(file)
    assert said in refused.value.message


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(FleetRefused, match=r"fleet\.yaml"):
        read_fleet(tmp_path / "fleet.yaml")
