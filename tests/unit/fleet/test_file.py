"""`fleet.yaml`: what is read, what is refused, and that the file which `fleet init` writes is read back."""

from pathlib import Path

import pytest

from dflash_deploy.deployment.directory import FLEET_FILE
from dflash_deploy.errors import BadInput, FleetRefused
from dflash_deploy.features.fleet.file import Fleet, FleetHost, fleet_text, host_from, read_fleet
from tools.reference.fleet import FILE as MANUAL

TWO = "hosts: [{name: a, address: 10.0.0.1}, {name: b, address: 10.0.0.2}]\n"


def read(tmp_path: Path, text: str) -> Fleet:
    (tmp_path / FLEET_FILE).write_text(text)
    return read_fleet(tmp_path)


def test_a_host_needs_a_name_and_an_address(tmp_path: Path) -> None:
    fleet = read(tmp_path, TWO)
    assert [host.name for host in fleet.hosts] == ["a", "b"]
    assert fleet.shape == "auto"
    assert fleet.leader is fleet.hosts[0]


def test_the_leader_has_rank_0(tmp_path: Path) -> None:
    fleet = read(tmp_path, "hosts: [{name: a, address: x}, {name: b, address: y, role: leader}]")
    assert [host.name for host in fleet.ranked] == ["b", "a"]


def test_the_ssh_configuration_is_beside_the_file(tmp_path: Path) -> None:
    assert read(tmp_path, f"ssh_config: config\n{TWO}").ssh_config == str(tmp_path / "config")
    assert read(tmp_path, f"ssh_config: /etc/config\n{TWO}").ssh_config == "/etc/config"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hosts: []", "hosts: Tuple should have at least 1 item"),
        ("hosts: [{name: a, address: x}, {name: a, address: y}]", "two hosts have the name a"),
        (
            "hosts: [{name: a, address: x, role: leader}, {name: b, address: y, role: leader}]",
            "more than one host has the role leader",
        ),
        ("hosts: [{name: a, addres: x}]", "unknown key hosts.0.addres"),
        (f"weights: hub\n{TWO}", "unknown key weights"),
        ("hosts: [{name: a, address: '-oProxyCommand=reboot'}]", "hosts.0.address"),
        ("hosts: [{name: a, address: 'x y'}]", "hosts.0.address"),
        ("hosts: [{name: a, address: x, user: '-x'}]", "hosts.0.user"),
        ("hosts: [{name: a, address: x, directory: '$(reboot)'}]", "hosts.0.directory"),
        ("hosts: [{name: a, address: x, port: 70000}]", "hosts.0.port"),
        ("hosts: [{name: A, address: x}]", "hosts.0.name"),
        ("hosts: {", "is not valid YAML"),
    ],
)
def test_what_is_not_valid_is_named(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(FleetRefused) as raised:
        read(tmp_path, text)
    assert said in raised.value.message
    assert raised.value.hint


def test_an_unknown_key_gets_the_closest_valid_one(tmp_path: Path) -> None:
    with pytest.raises(FleetRefused) as raised:
        read(tmp_path, "hosts: [{name: a, addres: x}]")
    assert raised.value.hint.startswith("did you mean address?")


def test_a_missing_file_names_the_command_that_writes_it(tmp_path: Path) -> None:
    with pytest.raises(FleetRefused) as raised:
        read_fleet(tmp_path)
    assert "fleet init" in raised.value.hint


@pytest.mark.parametrize(
    ("word", "host"),
    [
        ("spark-a", FleetHost(name="spark-a", address="spark-a")),
        ("nvidia@spark-a.lan", FleetHost(name="spark-a", address="spark-a.lan", user="nvidia")),
        ("left=nvidia@10.0.0.1", FleetHost(name="left", address="10.0.0.1", user="nvidia")),
        ("10.0.0.1", FleetHost(name="10-0-0-1", address="10.0.0.1")),
    ],
)
def test_a_host_on_the_command_line(word: str, host: FleetHost) -> None:
    assert host_from(word) == host


@pytest.mark.parametrize("word", ["", "a b", "-oX", "x=", "@", "a=;reboot", "a=x@$(id)"])
def test_a_word_that_is_not_a_host_is_refused(word: str) -> None:
    with pytest.raises(BadInput):
        host_from(word)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    hosts = (host_from("nvidia@10.0.0.1"), host_from("b=10.0.0.2"), FleetHost(name="7", address="7", port=2222))
    assert read(tmp_path, fleet_text(hosts)).hosts == hosts


def test_the_manual_has_every_field_and_is_valid_with_all_of_them(tmp_path: Path) -> None:
    text = MANUAL.read_text(encoding="utf-8")
    whole = read(tmp_path, text.replace("#: ", ""))
    for kind in (whole, whole.install, whole.hosts[0]):
        assert kind.model_fields_set == set(type(kind).model_fields), kind


def test_only_known_hosts_can_be_named(tmp_path: Path) -> None:
    fleet = read(tmp_path, TWO)
    assert [host.name for host in fleet.named(("b", "b"))] == ["b"]
    assert fleet.named(()) == fleet.hosts
    with pytest.raises(BadInput, match="`c` is not a host"):
        fleet.named(("c",))
