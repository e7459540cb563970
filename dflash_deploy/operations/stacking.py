"""`export production-stack`: the values of vLLM's own chart for a deployment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from dflash_deploy.deployment import Deployment
from dflash_deploy.deployment.exported_folder import write_folder
from dflash_deploy.export.cluster import Cluster, is_pinned
from dflash_deploy.export.readme import image_note
from dflash_deploy.export.stack import CHART, CHART_VERSION
from dflash_deploy.export.stack_folder import keys_command, router_key_command, stack_folder
from dflash_deploy.operations.cluster import USUAL_CLUSTER, check_cluster, rendered
from dflash_deploy.operations.exported import ExportCheck, origin_of

COMMAND = "export production-stack"


@dataclass(frozen=True)
class ProductionStackExport:
    """The folder that `export production-stack` wrote. `note` says what the nodes lack of the image."""

    directory: Path
    files: Sequence[str]
    cluster: Cluster
    image: str
    note: str
    secret_commands: Sequence[str]

    def document(self) -> dict[str, object]:
        """The `data` of `export production-stack --json`; no key is in it."""
        return {
            "directory": str(self.directory),
            "files": list(self.files),
            "name": self.cluster.name,
            "replicas": self.cluster.replicas,
            "chart": CHART,
            "chart_version": CHART_VERSION,
            "image": self.image,
            "image_pinned": is_pinned(self.image),
            "image_note": self.note,
            "secret_commands": list(self.secret_commands),
        }


def export_production_stack(directory: Path, out: Path, cluster: Cluster = USUAL_CLUSTER) -> ProductionStackExport:
    """Write the values of the chart for the deployment in a directory into `out`, which is created.

    Of `cluster` it takes name, replicas, weights, image, GPU resource and runtime class. Files of a person are never
    overwritten. Raises NotPossible for engines other than vLLM, and what `export_kubernetes` raises.
    """
    deployment = Deployment.existing(directory)
    source, texts = rendered(deployment, cluster, stack_folder)
    write_folder(out, origin_of(deployment, COMMAND), texts, asdict(cluster))
    return ProductionStackExport(
        out.absolute(),
        tuple(sorted(texts)),
        cluster,
        source.image(cluster),
        image_note(source, cluster),
        (router_key_command(source, cluster), keys_command(source, cluster)),
    )


def check_production_stack(directory: Path, out: Path) -> ExportCheck:
    """Compare the folder `out` with what an export with the options of the last one would write; writes nothing.

    Raises BadInput if the folder has no export of this deployment, and what `export_production_stack` raises.
    """
    return check_cluster(directory, out, COMMAND, stack_folder)
