"""`export`: the deployment for other platforms."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli.command import command, examples
from dflash_deploy.cli.options import HERE, Directory, Json
from dflash_deploy.cli.shown import Report
from dflash_deploy.errors import DOCS

if TYPE_CHECKING:
    from dflash_deploy.features.export.operations import ComposeExport, KubernetesExport


export = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="The deployment elsewhere: kubernetes, compose.",
    epilog=examples("export compose", "export kubernetes --runtime-class nvidia"),
)


Image = Annotated[str, typer.Option(help="The pushed image, with its digest.", show_default=False)]

RuntimeClass = Annotated[str, typer.Option(help="RuntimeClass of the pods, such as nvidia on k3s.", show_default=False)]


Folder = Annotated[Path, typer.Option("--out", help="Where to write the folder; it is created.", file_okay=False)]


@command(changes=True, examples=("export kubernetes", "export kubernetes --name vision --image example.com/vllm:1"))
def export_kubernetes(
    directory: Directory = HERE,
    out: Folder = Path("kubernetes"),
    name: Annotated[str, typer.Option(help="Name of all objects.")] = "dflash",
    image: Image = "",
    runtime_class: RuntimeClass = "",
    as_json: Json = False,
) -> Report:
    """Write a kustomize folder with the settings of this deployment. No key is in it; the README has the steps."""
    from dflash_deploy.features.export.manifests import Cluster
    from dflash_deploy.features.export.operations import export_kubernetes as run_export_kubernetes

    cluster = Cluster(name=name, image=image, runtime_class=runtime_class)
    done = run_export_kubernetes(directory, out, cluster)
    return Report(done.document(), _written(done))


@command(changes=True, examples=("export compose", "export compose --out ../vision"))
def export_compose(
    directory: Directory = HERE,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The folder to write; its name is the name of the Compose project, else dflash-NAME-HASH-export.",
            file_okay=False,
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> Report:
    """Write a folder that runs with Docker Compose only. No key is in it; the README has the steps."""
    from dflash_deploy.features.export.operations import export_compose as run_export_compose

    done = run_export_compose(directory, out)
    return Report(done.document(), _composed(done))


def _composed(done: ComposeExport) -> tuple[str, ...]:
    own = [name for name in done.files if not name.startswith("build/")]
    built = len(done.files) - len(own)
    return (
        f"wrote        {done.directory}: {', '.join(own)}" + (f", and {built} files in build/" if built else ""),
        f"services     {', '.join(done.services)}",
        *(f"image        {image}" for image in done.images),
        f"next         {done.directory}/README.md has the steps; this command started nothing",
    )


WHERE = f"{DOCS}/how-to/kubernetes.md#ingress"


def _written(done: KubernetesExport) -> tuple[str, ...]:
    return (
        f"wrote        {done.directory}: {', '.join(done.files)}",
        f"image        {done.image_note or done.image}",
        f"secret       {done.secret_command}",
        *((f"domain       publish {done.domain} with an Ingress: {WHERE}",) if done.domain else ()),
        f"next         {done.directory}/README.md has the steps; this command applied nothing",
    )


export.command("kubernetes")(export_kubernetes)
export.command("compose")(export_compose)
