"""What pods find on this machine: objects of the cluster by name, and their volumes as directories."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.kubelet.spec import PodSpec, Volume

SHARED = 0o2777
"""The mode of a directory that the kubelet makes for a pod with an fsGroup."""

ACCOUNT = ("token", "ca.crt", "namespace")
"""The files that a pod has of its service account."""


@dataclass
class Node:
    """A node with one namespace. `accounts`: a directory with the files of a service account, by the account's name.

    `network` is a network of Docker, `pause` the image that keeps a pod's address, `api` the address of Kubernetes.
    The node has no GPUs. `ignores_gpus` runs a container that needs some all the same, which Kubernetes does not.
    """

    place: Path
    network: str
    pause: str
    api: tuple[str, int] = ("", 0)
    secrets: dict[str, Mapping[str, bytes]] = field(default_factory=dict)
    config_maps: dict[str, Mapping[str, str]] = field(default_factory=dict)
    claims: dict[str, Path] = field(default_factory=dict)
    accounts: dict[str, Path] = field(default_factory=dict)
    ignores_gpus: bool = False

    def volumes(self, name: str, pod: PodSpec) -> dict[str, Path]:
        """Make the directories of a pod's volumes; each is new except claims and directories of the node."""
        here = self.place / "pods" / name
        shutil.rmtree(here, ignore_errors=True)
        return {one.name: self._directory(one, here / one.name, pod) for one in pod.volumes if one.kind != "memory"}

    def _directory(self, volume: Volume, place: Path, pod: PodSpec) -> Path:
        match volume.kind:
            case "host":
                found = Path(volume.source)
                assert found.is_dir(), f"{found} is no directory of the node"
                return found
            case "claim":
                found = self.claims[volume.source]
                _give(found, pod.fs_group)
                return found
            case "empty":
                place.mkdir(parents=True)
                _give(place, pod.fs_group)
            case "secret":
                contents = self.secrets.get(volume.source, {}) if volume.optional else self.secrets[volume.source]
                _written(place, contents, volume.mode, pod.fs_group)
            case "config":
                texts = {name: text.encode() for name, text in self.config_maps[volume.source].items()}
                _written(place, texts, volume.mode, pod.fs_group)
            case "account":
                files = {name: (self.accounts[pod.account] / name).read_bytes() for name in ACCOUNT}
                _written(place, files, volume.mode, pod.fs_group)
        return place

    def file_of(self, directory: Path, sub_path: str, pod: PodSpec) -> Path:
        """What a mount with a subPath shows. A directory that is missing is made, as in a claim."""
        found = directory / sub_path
        if not found.exists():
            found.mkdir()
            _give(found, pod.fs_group)
        return found.resolve()


def _give(directory: Path, group: int) -> None:
    os.chown(directory, -1, group)
    directory.chmod(SHARED)


def _written(place: Path, contents: Mapping[str, bytes], mode: int, group: int) -> None:
    """Files as the kubelet has them: links to those of a hidden directory, which it replaces as a whole."""
    hidden = place / "..2026_11_23"
    hidden.mkdir(parents=True)
    for name, content in contents.items():
        file = hidden / name
        file.write_bytes(content)
        os.chown(file, 0, group)
        file.chmod(mode)
        (place / name).symlink_to(f"..data/{name}")
    (place / "..data").symlink_to(hidden.name)
    for directory in (place, hidden):
        os.chown(directory, 0, group)
        directory.chmod(0o755)
