"""Lists of pods, as a server may send them."""

import json
from typing import Any

import pytest

from dflash_deploy.features.export.kube import Pod, PodList, image_of, settings_of
from dflash_deploy.intake.answers import read_document
from dflash_deploy.intake.parse import Invalid

POD: dict[str, Any] = {"metadata": {"name": "dflash-a"}, "spec": {"containers": []}, "status": {}}


def pod_with(**parts: Any) -> Pod:
    return read_document(json.dumps({**POD, **parts}), Pod)


@pytest.mark.parametrize("secret", [None, "text", [], {"secretName": None}, {}])
def test_a_volume_of_keys_that_is_no_secret_is_read(secret: object) -> None:
    pod = pod_with(spec={"containers": [], "volumes": [{"name": "keys", "secret": secret}]})
    assert pod.keys_secret == ""


@pytest.mark.parametrize("name", ["", "-a", "a b", "../x", "A", "a\n", "a" * 300])
def test_a_name_that_kubernetes_does_not_have_is_refused(name: str) -> None:
    with pytest.raises(Invalid, match="name"):
        read_document(json.dumps({"items": [{**POD, "metadata": {"name": name}}]}), PodList)


@pytest.mark.parametrize("items", [None, {}, [None], [{}], [{"metadata": {"name": "a"}}], [POD] * 201])
def test_what_is_not_a_list_of_pods_is_refused(items: object) -> None:
    with pytest.raises(Invalid):
        read_document(json.dumps({"items": items}), PodList)


def test_a_pod_that_ends_or_is_not_ready_says_so() -> None:
    ready = [{"type": "Ready", "status": "True"}]
    assert pod_with(status={"phase": "Running", "conditions": ready}).unready == ""
    assert pod_with(status={"phase": "Pending"}).unready == "Pending, not ready"
    ends = {"name": "a", "deletionTimestamp": "2026-11-23T08:00:00Z"}
    assert pod_with(metadata=ends, status={"conditions": ready}).unready == "it is about to end"


def test_a_container_is_compared_without_its_image() -> None:
    container = {"name": "engine", "image": "x:1", "env": [{"name": "A", "value": "1"}]}
    pod = pod_with(spec={"containers": [container]})
    assert settings_of(pod, "engine") == {"env": container["env"]}
    assert image_of(pod, "engine") == "x:1"
    running = {"containerStatuses": [{"name": "engine", "imageID": "x@sha256:1"}]}
    assert image_of(pod_with(spec={"containers": [container]}, status=running), "engine") == "x@sha256:1"
    assert image_of(pod, "router") == ""
