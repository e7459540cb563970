"""The claim that has the weights, and the Job that fills it."""

import json
import re
from dataclasses import replace

from dflash_deploy.features.export.cluster import Cluster
from dflash_deploy.features.export.folder import folder
from dflash_deploy.features.export.objects import loader, objects
from dflash_deploy.features.export.pull import job_name, pull_objects
from dflash_deploy.features.export.readme import readme
from tests.support.manifests import (
    container_of,
    plan_for,
    pod_of,
    source_for,
)


def test_one_claim_has_target_and_drafter() -> None:
    source = source_for(plan_for("h100"), weights_bytes=50 * 2**30)
    cluster = Cluster(weights="claim")
    made = objects(source, cluster)
    claim = made["weights.yaml"]["spec"]
    assert claim["resources"]["requests"]["storage"] == "55Gi"
    mounts = {mount["mountPath"]: mount.get("subPath") for mount in container_of(source, cluster)["volumeMounts"]}
    assert mounts["/models/target"] == "target"
    assert mounts["/models/drafter"] == "drafter"
    pod = loader(source, cluster)["spec"]
    assert pod["volumes"] == [{"name": "weights", "persistentVolumeClaim": {"claimName": "dflash-weights"}}]
    assert "/srv/weights" not in json.dumps(made)


def test_a_claim_of_another_mode_has_another_name() -> None:
    """Kubernetes refuses to change the mode of a claim, which a second export with other replicas would do."""
    modes: dict[str, set[str]] = {}
    for replicas in (1, 2):
        cluster = Cluster(weights="claim", replicas=replicas)
        source = source_for(plan_for("h100"), weights_bytes=1, pull_files={"dflash.lock": "1"})
        made = [objects(source, cluster), pull_objects(source, cluster), loader(source, cluster)]
        claim = objects(source, cluster)["weights.yaml"]
        name = claim["metadata"]["name"]
        modes.setdefault(name, set()).add(*claim["spec"]["accessModes"])
        assert set(re.findall(r"'claimName': '([\w-]*weights[\w-]*)'", str(made))) == {name}
        assert f"`{name}`" in readme(source, cluster)
    assert modes == {"dflash-weights": {"ReadWriteOnce"}, "dflash-weights-shared": {"ReadWriteMany"}}


def test_a_changed_lock_is_another_job() -> None:
    source = source_for(plan_for("h100"), weights_bytes=1, pull_files={"dflash.lock": "1"})
    other = replace(source, pull_files={"dflash.lock": "2"})
    name = "v" * 40
    names = {job_name(one, Cluster(name=name, weights="claim")) for one in (source, other)}
    assert len(names) == 2
    # a pod of a Job adds six characters
    assert max(map(len, names)) + 6 <= 63


def test_the_job_is_confined_and_writes_to_the_claim_only() -> None:
    source = source_for(plan_for("h100"), weights_bytes=1, pull_files={"dflash.lock": "1"})
    cluster = Cluster(weights="claim")
    pod = pod_of(pull_objects(source, cluster)["job.yaml"])
    (job,), (engine,) = pod["containers"], pod_of(objects(source, cluster)["deployment.yaml"])["containers"]
    assert job["securityContext"] == engine["securityContext"]
    assert pod["securityContext"] == pod_of(objects(source, cluster)["deployment.yaml"])["securityContext"]
    writable = {mount["name"] for mount in job["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {"weights", "work", "tmp"}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["weights"]["persistentVolumeClaim"]["claimName"] == "dflash-weights"
    assert volumes["token"]["secret"]["optional"]
    # `pull` ends at SIGTERM only if it is not the first process
    assert pod["shareProcessNamespace"] is True
    # with OnFailure, Kubernetes deletes the pod of a Job that failed, and its log
    assert pod["restartPolicy"] == "Never"


def test_without_a_lock_that_a_job_can_have_the_claim_is_filled_by_hand() -> None:
    texts = folder(source_for(plan_for("h100"), weights_bytes=1), Cluster(weights="claim"))
    assert "loader.yaml" in texts
    assert not [name for name in texts if name.startswith("pull/")]
    assert "kubectl apply -k pull" not in texts["README.md"]
