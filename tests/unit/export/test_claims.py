"""The claim that has the weights."""

import json
import re

from dflash_deploy.features.export.cluster import Cluster
from dflash_deploy.features.export.folder import readme
from dflash_deploy.features.export.objects import loader, objects
from tests.support.manifests import container_of, plan_for, source_for


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
        source = source_for(plan_for("h100"), weights_bytes=1)
        made = [objects(source, cluster), loader(source, cluster)]
        claim = objects(source, cluster)["weights.yaml"]
        name = claim["metadata"]["name"]
        modes.setdefault(name, set()).add(*claim["spec"]["accessModes"])
        assert set(re.findall(r"'claimName': '([\w-]*weights[\w-]*)'", str(made))) == {name}
        assert f"`{name}`" in readme(source, cluster)
    assert modes == {"dflash-weights": {"ReadWriteOnce"}, "dflash-weights-shared": {"ReadWriteMany"}}
