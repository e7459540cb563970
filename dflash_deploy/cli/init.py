"""`init`: choose settings for a machine and write them down."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli.planned import (
    Engine,
    Goal,
    Length,
    Master,
    Model,
    NoDrafter,
    Profile,
    Rank,
    Runtime,
    Streams,
    make_plan,
    refusal_of,
)
from dflash_deploy.cli.report import HERE, Directory, Json, Report, verb
from dflash_deploy.errors import BadInput

if TYPE_CHECKING:
    from dflash_deploy.plan import Plan


@verb
def init(
    directory: Directory = HERE,
    profile: Profile = None,
    model: Model = None,
    engine: Engine = None,
    goal: Goal = None,
    max_model_len: Length = None,
    concurrency: Streams = None,
    no_drafter: NoDrafter = False,
    runtime: Runtime = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on [127.0.0.1].")] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port to listen on [8000].")] = None,
    node_rank: Rank = None,
    master_addr: Master = None,
    models_dir: Annotated[Path, typer.Option(help="Where weights lie, one directory per model.")] = Path("~/models"),
    force: Annotated[bool, typer.Option("--force", help="Write .env anew; the key and the token in it stay.")] = False,
    as_json: Json = False,
) -> Report:
    """Write .env (with a fresh key) and compose.yaml for this machine."""
    from dflash_deploy.deployment import Deployment, hold
    from dflash_deploy.deployment.dotenv import fill_template
    from dflash_deploy.deployment.render import create
    from dflash_deploy.plan import Choice

    deployment = Deployment(directory)
    if deployment.exists() and not force:
        raise BadInput(
            f"there is already a deployment in {deployment.directory}",
            hint="edit its .env and run `dflash-deploy up`, or write it anew with --force",
        )
    choice = Choice(
        profile=profile,
        model=model,
        engine=engine,
        runtime=runtime,
        goal=goal,
        max_model_len=max_model_len,
        concurrency=concurrency,
        drafter=not no_drafter,
        host=host,
        port=port,
        node_rank=node_rank,
        master_addr=master_addr,
        models_dir=models_dir,
    )
    plan = make_plan(choice)
    # refused here, before there is a directory, if a value cannot be written down
    fill_template(plan.values)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with hold(deployment, "init"):
            create(deployment, plan)
    except OSError as problem:
        said = f"{deployment.directory} cannot be written: {problem.strerror}"
        raise BadInput(said, hint="choose another directory with --dir") from None
    data = {
        "directory": str(deployment.directory),
        "profile": plan.profile.name,
        "pair": plan.pair.name,
        "engine": plan.engine.name,
        "runtime": plan.runtime,
    }
    shown = (
        f"profile  {plan.profile.name}: {plan.profile.title} ({plan.profile.evidence.state})",
        f"pair     {plan.pair.title}",
        f"engine   {plan.engine.title}, {plan.runtime}",
        f"wrote    {deployment.env_file} (settings and the key, readable by you alone)",
        f"         {deployment.compose_file}",
        "next     dflash-deploy plan   why each setting is as it is",
        "         dflash-deploy up     start it and wait for the first answer",
    )
    return Report(data, (*shown, *refusal_of(plan), *_other_machines(plan)), plan.findings)


def _other_machines(plan: Plan) -> list[str]:
    """What is to be done elsewhere, where several machines serve together."""

    if not plan.settings.several_machines:
        return []
    rank, master = plan.values.get("NODE_RANK", "0"), plan.values.get("MASTER_ADDR") or "ADDRESS"
    if rank != "0":
        return ["         this rank answers nobody: `dflash-deploy up` here first, then on rank 0"]
    command = f"dflash-deploy init --profile {plan.profile.name} --node-rank 1 --master-addr {master}"
    return [f"         on the other machine: {command}, then `up` there first"]
