"""The tests that run pods as containers translate every field of a manifest: one that they do not know is an error."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest

from dflash_deploy.features.export.cluster import Cluster
from dflash_deploy.features.export.objects import loader, objects, router_objects
from tests.support.kubelet.fields import UnknownField
from tests.support.kubelet.spec import ARCHITECTURES, cpus, read_pod, size
from tests.support.manifests import plan_for, pod_of, source_for

CLAIM = Cluster(name="vision", replicas=2, weights="claim")
SOURCE = source_for(plan_for("cpu"), weights_bytes=1)
PODS = {
    "engine": pod_of(objects(SOURCE, CLAIM)["deployment.yaml"]),
    "engine of one": pod_of(objects(SOURCE, Cluster())["deployment.yaml"]),
    "engine with a GPU": pod_of(objects(source_for(plan_for("h100", "sglang")), Cluster())["deployment.yaml"]),
    "router": pod_of(router_objects(SOURCE, CLAIM)["router.yaml"]),
    "loader": loader(SOURCE, CLAIM)["spec"],
}


@pytest.fixture(autouse=True)
def any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Manifests for one processor are also read on another one."""
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert ARCHITECTURES["x86_64"] == "amd64"


def places(value: Any, *path: str | int) -> Iterator[tuple[str | int, ...]]:
    """The way to each object in a document."""
    if isinstance(value, dict):
        yield path
    for key, one in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(one, *path, key)


def with_field(pod: dict[str, Any], path: tuple[str | int, ...], name: str) -> dict[str, Any]:
    """The document with a further field in one of its objects."""
    changed = deepcopy(pod)
    found: Any = changed
    for key in path:
        found = found[key]
    found[name] = "x"
    return changed


@pytest.mark.parametrize("name", PODS)
def test_each_exported_pod_is_translated(name: str) -> None:
    pod = read_pod(PODS[name])
    assert (pod.user, pod.group, pod.fs_group) == (1000, 1000, 1000)
    mounted = {mount.volume for one in pod.containers for mount in one.mounts}
    assert mounted == {volume.name for volume in pod.volumes}


@pytest.mark.parametrize("name", PODS)
def test_a_field_that_is_not_translated_is_an_error(name: str) -> None:
    tried = list(places(PODS[name]))
    assert len(tried) > 10
    for path in tried:
        with pytest.raises(UnknownField):
            read_pod(with_field(PODS[name], path, "newField"))


@pytest.mark.parametrize(
    ("path", "name", "value"),
    [
        ((), "hostNetwork", True),
        ((), "enableServiceLinks", True),
        (("securityContext",), "runAsNonRoot", False),
        (("securityContext",), "runAsUser", 0),
        (("securityContext", "seccompProfile"), "type", "Unconfined"),
        (("containers", 0, "securityContext"), "readOnlyRootFilesystem", False),
        (("containers", 0, "securityContext", "capabilities"), "drop", []),
        (("containers", 0), "env", [{"name": "A", "value": "$(B)"}]),
        (("nodeSelector",), "kubernetes.io/os", "windows"),
    ],
)
def test_a_value_that_is_not_translated_is_an_error(path: tuple[str | int, ...], name: str, value: Any) -> None:
    changed = with_field(PODS["engine"], path, name)
    found: Any = changed
    for key in path:
        found = found[key]
    found[name] = value
    with pytest.raises(UnknownField):
        read_pod(changed)


def test_gpus_are_counted() -> None:
    assert [read_pod(PODS[name]).containers[0].gpus for name in ("engine", "engine with a GPU")] == [0, 1]


def test_quantities_are_those_of_kubernetes() -> None:
    assert [size(one) for one in ("512Mi", "16Gi", "1024")] == [512 << 20, 16 << 30, 1024]
    assert [cpus(one) for one in ("250m", "2")] == [0.25, 2.0]
