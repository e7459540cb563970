"""Each host downloads the weights itself, at the commits of the terminal, and starts: also after a kill."""

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.commands import checked
from tests.support.fleet_command import started
from tests.support.fleet_hub import FILES, PAIR, hub_behind, write_catalog
from tests.support.fleet_lab import Host, Lab, states
from tests.support.hub import Hub

MODELS = "dflash-pulled"
"""The directory of weights, below the home directory of each machine."""


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A catalog with the tiny pair on the Hub, for the terminal."""
    written = write_catalog(tmp_path_factory.mktemp("catalog") / "own")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DFLASH_CATALOG", str(written))
        yield written


@pytest.fixture
def hub(whole_lab: Lab, catalog: Path) -> Iterator[Hub]:
    """A Hub that sends 20 Mbit/s to both hosts together."""
    whole_lab.clear()
    for host in whole_lab.hosts:
        host.stop()
        host.start(server_lines=(f"SetEnv DFLASH_CATALOG={catalog} HF_HOME={host.home}/hf",))
        whole_lab.wait_for(host)
    with hub_behind(whole_lab, 20) as running:
        yield running
    whole_lab.clear()


@pytest.fixture
def pair(whole_lab: Lab, hub: Hub) -> Lab:
    """The lab with a deployment whose weights are on the Hub."""
    found = replace(whole_lab, directory=whole_lab.root / "pulled")
    found.directory.mkdir()
    options = ("--profile", "cpu", "--model", PAIR, "--engine", "llamacpp", "--runtime", "native", "--port", "8000")
    found.dflash("init", *options, "--models-dir", str(Path.home() / MODELS)).succeeded()
    found.write_fleet(f"settings: {{HF_ENDPOINT: {hub.endpoint!r}}}")
    return found


def weights_of(host: Host) -> dict[str, Path]:
    """The files of weights of a host by name, part files included."""
    return {file.name: file for file in (host.home / MODELS).rglob("*") if file.suffix in {".gguf", ".part"}}


def test_each_host_downloads_its_weights_also_after_a_kill(pair: Lab, hub: Hub) -> None:
    first, other = pair.hosts
    with started(pair, "fleet", "up") as up:
        while not up.until("fetching weights: ").startswith("host-b"):
            continue
        up.process.send_signal(signal.SIGKILL)
        up.ended()
    assert any(set(weights_of(host)) != set(FILES) for host in pair.hosts)

    done = pair.dflash("fleet", "up", "--json").succeeded()
    assert states(done.document) == ["ready", "ready"]
    digests = [{name: checked("sha256sum", str(file)).split()[0] for name, file in weights_of(host).items()}
               for host in pair.hosts]  # fmt: skip
    assert digests[0] == digests[1]
    assert set(digests[0]) == set(FILES)
    # each file came once for each host: a download that was interrupted resumes
    size = sum(file.stat().st_size for file in weights_of(first).values())
    assert 2 * size <= hub.sent("*.gguf") < 2.2 * size
    locks = {(place / "dflash.lock").read_text() for place in (pair.directory, first.deployment, other.deployment)}
    assert len(locks) == 1
