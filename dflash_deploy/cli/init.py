"""`init`: choose settings for a machine and write them down; on a terminal, ask at most six questions first.

Each question has a default that Enter accepts.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from shutil import get_terminal_size
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from dflash_deploy.cli.command import command
from dflash_deploy.cli.options import LARGEST_PORT, is_asked_on_terminal, machine_line, with_choice
from dflash_deploy.cli.planned import From, evidence_of, faster_line, model_lines, offer_lines, taken_over
from dflash_deploy.cli.shared import place_of_new
from dflash_deploy.cli.shown import Report
from dflash_deploy.errors import BadInput, UnknownProfile
from dflash_deploy.serve.settings import Settings

if TYPE_CHECKING:
    from dflash_deploy.operations.foreign import ForeignPlan
    from dflash_deploy.operations.plan import Created, Offer
    from dflash_deploy.plan.result import Choice, Plan
    from dflash_deploy.serve.settings import Goal as GoalName

T = TypeVar("T")


Domain = Annotated[
    str | None, typer.Option(help="Domain name or IP address to publish it on, with HTTPS.", metavar="NAME")
]


@command(changes=True, examples=("init", "init --profile h100 --from 'vllm serve Qwen/Qwen3.5-27B'"))
@with_choice
def init(
    choice: Choice,
    host: Annotated[str | None, typer.Option(help="Address to listen on [127.0.0.1].")] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port to listen on [8000].")] = None,
    domain: Domain = None,
    models_dir: Annotated[Path, typer.Option(help="Directory of the weights.")] = Path("~/models"),
    from_: From = None,
    service: Annotated[
        str | None, typer.Option(help="Engine to take over of several in the file of --from.", metavar="NAME")
    ] = None,
    dry_run_script: Annotated[
        bool,
        typer.Option("--dry-run-script", help="Run the script of --from with recorders for docker, vllm and others."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Never prompt.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Write .env again; keep its key and token.")] = False,
    *,
    directory: Path | None = None,
    as_json: bool,
) -> Report:
    """Write .env (with a fresh key) and compose.yaml for this machine.

    On a terminal, without options, it asks at most six questions first.
    """
    from dflash_deploy.plan.result import Choice

    chosen = place_of_new(directory, force=force)
    choice = replace(choice, host=host, port=port, domain=domain, models_dir=models_dir)
    if choice == Choice() and not (from_ or yes or force or as_json) and is_asked_on_terminal():
        choice = ask(chosen)
    theirs = _taken_over(from_, choice, service or "", dry_run=dry_run_script, agreed=yes) if from_ else None
    return _initialised(chosen, choice, theirs, force=force)


def _initialised(chosen: Path | None, choice: Choice, theirs: ForeignPlan | None, *, force: bool) -> Report:
    """Write the deployment, or say why the recipe of others is not taken over."""
    from dflash_deploy.operations.plan import init as run_init

    if theirs is not None and theirs.failure is not None:
        return Report(theirs, tuple(taken_over(theirs)), failure=theirs.failure)
    created = run_init(chosen, theirs.choice if theirs else choice, force=force)
    plan = created.plan
    shown = (*(taken_over(theirs) if theirs else ()), *_created(created, choice, here=chosen is not None))
    findings = (*plan.errors, *(finding for finding in plan.findings if finding not in plan.errors))
    return Report(replace(created, recipe=theirs), shown, findings, findings_first=bool(plan.errors))


def _created(created: Created, choice: Choice, *, here: bool) -> Iterator[str]:
    """What was planned and written, and the next commands. `here`: where the user asked, not in ~/dflash."""
    plan, deployment = created.plan, created.deployment
    there, first = (deployment.option, "next") if here else ("", "")
    yield f"profile  {plan.profile.name}: {plan.profile.title} ({evidence_of(plan)})"
    yield from model_lines(plan)
    yield f"engine   {plan.engine.title}, {plan.runtime}"
    for saw, fix in created.lacks:
        yield f"missing  {saw}"
        yield f"         {fix}"
    copies = (one for one in plan.decisions if one.name == Settings.data_parallel_size.name and one.value)
    yield from (f"copies   {decision.value}: {decision.reason}" for decision in copies)
    yield from (*_faster(choice, plan), *_written(created))
    if not here:
        change = f"cd {shlex.quote(str(deployment.directory))}"
        yield f"         the current directory is not empty: {change}"
        yield f"next     {change}"
    yield f"{first:9}dflash-deploy plan{there}   why each setting has its value"
    yield f"         dflash-deploy up{there}     {_start(created)}"
    yield from _other_machines(plan)


def _taken_over(source: str, choice: Choice, service: str, *, dry_run: bool, agreed: bool) -> ForeignPlan:
    """The recipe as a plan; of several engines, the one that is asked for on a terminal."""
    from dflash_deploy.foreign.items import SeveralEngines
    from dflash_deploy.operations.described import with_models
    from dflash_deploy.operations.foreign import composed, plan_from, recipe_text

    text = recipe_text(source)
    if dry_run:
        text = _run_dry(text, agreed=agreed)

    def plan(name: str) -> ForeignPlan:
        return plan_from(text, choice, find=with_models, service=name, compose=composed(source))

    try:
        return plan(service)
    except SeveralEngines as several:
        if agreed or not is_asked_on_terminal():
            raise
        _say(f"The recipe starts {len(several.names)} engines: {', '.join(several.names)}")
        return plan(_asked("Engine", several.names[0], _one_of(several.names, "engine"), several.names))


def _run_dry(text: str, *, agreed: bool) -> str:
    """The command that a script ends in. Raises BadInput without a terminal to ask on."""
    from dflash_deploy.operations.dry_run import dry_run, notice

    _say(notice())
    if not agreed:
        if not is_asked_on_terminal():
            raise BadInput("a script of others is run only after a question", hint="agree in advance: add --yes")
        typer.confirm("Run it?", abort=True, err=True)
    command, said = dry_run(text)
    if said:
        _say(said)
    return command


def _faster(choice: Choice, plan: Plan) -> tuple[str, ...]:
    """A recipe that others measured as faster, unless this one was asked for."""
    from dflash_deploy.operations.plan import faster_than

    asked = choice.recipe or choice.model or choice.engine
    return () if asked else faster_line(faster_than(plan), choice.profile)


def _written(created: Created) -> Iterator[str]:
    """The files, and what `--force` changed in them."""
    yield f"wrote    {created.deployment.env_file} (settings and the key, readable only by you)"
    yield f"         {created.deployment.compose_file}"
    yield from _replaced(created)


def _replaced(created: Created) -> Iterator[str]:
    """What `--force` changed: an option that was not given again has its default."""
    for number, (name, (old, new)) in enumerate(created.replaced.items()):
        line = f"{'' if number else 'changed':9}{name}: {old or '(empty)'} -> {new or '(empty)'}"
        yield created.deployment.redact(line)
    if created.replaced:
        yield f"before   {created.deployment.last_env_file} has the settings as they were"


def _start(created: Created) -> str:
    """What `up` does here."""
    plan = created.plan
    if created.lacks:
        return "after what is missing works"
    if plan.errors:
        return "after the error above is fixed, or on the machine that the profile is for"
    if plan.settings.several_machines and not plan.settings.answers_requests:
        return "start it here first; it waits for rank 0, which answers requests"
    return "start it and wait for the first answer"


def _other_machines(plan: Plan) -> list[str]:
    """What to do on the other machines, if several serve together."""
    if not plan.settings.several_machines or not plan.settings.answers_requests:
        return []
    master = plan.settings.master_addr
    command = f"dflash-deploy init --profile {plan.profile.name} --node-rank 1 --master-addr {master}"
    return [f"         on the other machine: {command}", "         then `up` there first, and `up` here after it"]


FIRST = "first"  # the answer that takes the model that `plan` ranks first

# What a deployment is for: `coding` gets a long context, `vision` only models that read images.
USES = ("chat", "coding", "vision")


def ask(directory: Path | None) -> Choice:
    """Show this machine, and ask for profile, use, recipe, directory of the weights, port and runtime.

    Questions with one answer are left out. Raises BadInput if the directory is a deployment already, and what planning
    raises.
    """
    from dflash_deploy.operations.plan import offer
    from dflash_deploy.plan.result import Choice

    offered = offer(directory)
    _say(f"This machine: {machine_line(offered.facts)}. Enter accepts a default, ? shows the answers.")
    names = tuple(offered.catalog.profiles)
    profile = _asked("Hardware profile", offered.fitting or "", _profile_of(offered), names)
    use = _asked("Use (chat, coding or vision)", USES[0], _one_of(USES, "use"), USES)
    recipe = _recipe(offered, profile, use)
    plan = offered.plan(profile, recipe)
    if use == "vision" and not plan.pair.sees:
        _say(f"No recipe or model of {profile} reads images: `dflash-deploy models list` marks those that do.")
    models = Path("~/models")
    if plan.pair.target.repo:
        models = _asked("Directory for the weights", str(models), Path)
    port = _asked("Port", str(offered.free_port(plan)), _port)
    runtimes = offered.runtimes(plan)
    runtime = None
    if len(runtimes) > 1:
        wanted = _asked("Runtime (compose or native)", runtimes[0], _one_of(runtimes, "runtime"), runtimes)
        runtime = next(one for one in runtimes if one == wanted)
    goal: GoalName | None = next((one for one in ("coding", "vision") if one == use), None)
    return Choice(profile=profile, recipe=recipe, goal=goal, models_dir=models, port=port, runtime=runtime)


def _recipe(offered: Offer, profile: str, use: str) -> str | None:
    """The chosen recipe; `None` for the model that is ranked first, without a question if no recipe suits the use."""
    recipes = [one for one in offered.recipes(profile) if one.pair.sees or use != "vision"]
    if not recipes:
        return None
    names = [FIRST, *(one.recipe.name for one in recipes)]
    for line in offer_lines(recipes, profile):
        _say(line, indent=6)
    chosen = _asked("Recipe", FIRST, _one_of(names, "recipe"), names)
    return None if chosen == FIRST else chosen


def _say(line: str, indent: int = 0) -> None:
    """A line on standard error, in the width of the terminal."""
    width = get_terminal_size().columns
    typer.echo("\n".join(wrap(line, width, subsequent_indent=" " * indent, break_on_hyphens=False)), err=True)


def _asked(text: str, default: str, read: Callable[[str], T], answers: Sequence[str] = ()) -> T:
    """Ask until there is an answer that `read` accepts; an empty one is `default`, if there is one."""
    while True:
        typer.echo(f"{text}{f' [{default}]' if default else ''}: ", nl=False, err=True)
        given = _line() or default
        if given.strip() == "?" and answers:
            _say(f"  {', '.join(answers)}", indent=2)
            continue
        try:
            if given:
                return read(given)
        except typer.BadParameter as problem:
            _say(f"Error: {problem.message}")


def _line() -> str:
    """Read a line from the terminal. Raises typer.Abort at the end of input."""
    line = sys.stdin.readline()
    if not line:
        raise typer.Abort
    return line.rstrip("\n")


def _profile_of(offered: Offer) -> Callable[[str], str]:
    def read(text: str) -> str:
        try:
            return offered.catalog.profile(text.strip()).name
        except UnknownProfile as problem:
            raise typer.BadParameter(f"{problem.message}; {problem.hint}") from None

    return read


def _port(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) < 6 and 1 <= int(text) <= LARGEST_PORT:
        return int(text)
    raise typer.BadParameter(f"`{text}` is not a valid port (1-{LARGEST_PORT})")


def _one_of(names: Sequence[str], what: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.strip() in names:
            return text.strip()
        raise typer.BadParameter(f"`{text}` is not a valid {what} ({', '.join(names)})")

    return read
