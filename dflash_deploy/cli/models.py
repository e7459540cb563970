"""`models list`, `show`, `use`, `add`, `rm`, `prune`, `convert`: targets with their drafters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli import options
from dflash_deploy.cli.command import command, examples, terminal
from dflash_deploy.cli.options import GIB, Drafter, Profile, size_of
from dflash_deploy.cli.shown import Grid, Report, Shown
from dflash_deploy.cli.upgrade import models_use
from dflash_deploy.errors import BadInput
from dflash_deploy.serve.engines.llamacpp import Llamacpp
from dflash_deploy.serve.settings import Settings

if TYPE_CHECKING:
    from dflash_deploy.catalog.models import ModelPair, Weights
    from dflash_deploy.operations.models import ModelRow, Models, Removal


models = typer.Typer(
    help="Models with drafters: list, show, use, add, rm, prune, convert.",
    invoke_without_command=True,
    rich_markup_mode=None,
    epilog=examples("models list --profile rtx-5090", "models show qwen3.6-27b-fp8"),
)


@models.callback()
def _list_them(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        models_list(profile=None, memory=None, everything=False, shared=context)


@command(examples=("models list", "models list --memory 24G"))
def models_list(
    profile: Profile = None,
    memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Memory of one GPU, such as 24G: list for a card that is not here."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also list models that are not compatible, with the reason.")
    ] = False,
) -> Report:
    """List models that are compatible with this machine, --profile or --memory, the best first.

    Context and sequences are those of a plan, tokens/s those of all sequences, published or expected.
    """
    from dflash_deploy.operations.models import models

    if profile and memory:
        raise BadInput("--profile and --memory name two machines", hint="remove one of them")
    found = models(profile, _size(memory) if memory else None)
    good = [row for row in found.models if row.compatible]
    lines = (_HEAD, *map(_line, good), "", *_others(found, everything))
    return Report(found, (f"compatible with {found.title}", *lines))


_HEAD = f"{'model':35} {'GB':>5} {'context':>12} {'tok/s':>5} {'date':7} evidence"


def _line(row: ModelRow) -> str:
    """One model in 80 columns."""
    context = f"{row.max_model_len:,} x {row.max_num_seqs}" if row.max_model_len else ""
    speed = f"{row.tokens_per_s:.0f}" if row.tokens_per_s else "-"
    when = f"{row.released:%Y-%m}" if row.released else "-"
    return f"{row.name:35} {row.bytes / 1e9:5.1f} {context:>12} {speed:>5} {when:7} {row.evidence}"


def _size(text: str) -> int:
    """Bytes of a memory size such as 24G, 24GB or 24GiB; GB are counted as GiB, as cards are sold. Raises BadInput."""
    found = re.fullmatch(r"(\d{1,4})\s*(?:G|GB|GiB)?", text.strip(), re.IGNORECASE)
    if found is None or not int(found[1]):
        raise BadInput(
            f"`{text}` is not a memory size (1G-9999G)", hint="such as: `dflash-deploy models list --memory 24G`"
        )
    return int(found[1]) * GIB


def _others(found: Models, everything: bool) -> tuple[Shown, ...]:
    """The models that are not compatible: all of them, or how many there are."""
    bad = Grid("model", "why not")
    for row in (row for row in found.models if not row.compatible):
        bad.add_row(row.name, row.why_not)
    if everything:
        return "not compatible", bad
    return (f"{len(bad.rows)} others are not compatible: --all shows why",)


@command(examples=("models show qwen3.6-27b-fp8", "models show Qwen/Qwen3.6-27B-FP8 --json"))
def models_show(
    name: Annotated[str, typer.Argument(help="A model, or its target's repository.", autocompletion=options.models)],
) -> Report:
    """Show one model: weights, licence, drafter, measured acceptance, and the hardware that can serve it."""
    from dflash_deploy.operations.models import model

    found = model(name)
    on = Grid("profile", "goes there")
    for candidate in found.candidates:
        engine = candidate.plan.engine.title if candidate.plan else ""
        on.add_row(candidate.profile.name, f"no: {candidate.why_not}" if candidate.why_not else f"yes, with {engine}")
    return Report(found.document(), (*_described(found.pair), "", on))


@command(changes=True, examples=("models add ./my-model --drafter off", "models add OWNER/REPO --to ~/catalog"))
def models_add(
    place: Annotated[str, typer.Argument(help="OWNER/REPO, DIRECTORY, FILE.gguf, FILE.yaml or URL of an entry.")],
    drafter: Drafter = None,
    to: Annotated[Path | None, typer.Option(help="Directory of a custom catalog to write the entry to.")] = None,
    models_dir: Annotated[Path, typer.Option(help="Directory of the weights.")] = Path("~/models"),
) -> Report:
    """Read a model's headers, and print its catalog entry or write it to a custom catalog."""
    from dflash_deploy.operations.described import add

    added = add(place, drafter, models_dir, to)
    if added.file is None:
        return Report(added, (added.entry.rstrip(),))
    used = f"next     DFLASH_CATALOG={to} dflash-deploy init --model {added.name}"
    return Report(added, (f"wrote    {added.file}", used))


ModelsDir = Annotated[Path, typer.Option(help="Directory of the weights.")]
Agreed = Annotated[bool, typer.Option("--yes", "-y", help="Remove them; without it they are only shown.")]


@command(changes=True, examples=("models rm qwen3.5-27b-fp8", "models rm qwen3.5-27b-fp8 --yes"))
def models_rm(
    name: Annotated[str, typer.Argument(help="A model, or its target's repository.", autocompletion=options.models)],
    models_dir: ModelsDir = Path("~/models"),
    yes: Agreed = False,
    *,
    directory: Path,
) -> Report:
    """Remove the weights of a model that no deployment names. Without --yes, shows them."""
    from dflash_deploy.operations.models import remove

    done = remove([name], models_dir, directory, agreed=yes)
    return Report(done, tuple(_removal(done, f"models rm {name}")))


@command(changes=True, examples=("models prune", "models prune --yes"))
def models_prune(models_dir: ModelsDir = Path("~/models"), yes: Agreed = False, *, directory: Path) -> Report:
    """Remove the weights of all models that no deployment names. Without --yes, shows them.

    Deployments are the one of this directory and those below ~/dflash. Only directories of the catalog's models count.
    """
    from dflash_deploy.operations.models import remove

    done = remove([], models_dir, directory, agreed=yes)
    return Report(done, tuple(_removal(done, "models prune")))


def _removal(done: Removal, command: str) -> Iterator[str]:
    for one in done.weights:
        yield f"{'removed' if done.removed else 'unused':9}{one.directory}, {size_of(one.bytes)}"
    for one in done.kept:
        yield f"{'kept':9}{one.directory}, {size_of(one.bytes)}: named by {', '.join(map(str, one.used_by))}"
    if done.weights and not done.removed:
        yield f"next     dflash-deploy {command} --yes   removes {size_of(sum(one.bytes for one in done.weights))}"
    if not done.weights:
        yield "a deployment names every directory" if done.kept else "no weights of the catalog's models are there"


def _described(pair: ModelPair) -> Iterator[str]:
    family, shape = pair.family, pair.shape
    yield f"{pair.name}: {pair.title}"
    if pair.target.notice:
        yield f"notice    {pair.target.notice}"
    yield f"target    {_weights(pair.target)}, {pair.target.quantisation}"
    if pair.drafter.absent:
        yield "drafter   none is known"
    else:
        yield f"drafter   {_weights(pair.drafter)}, block of {pair.drafter.block_size}"
    if pair.drafter.trained_context:
        yield f"          trained on up to {pair.drafter.trained_context} tokens"
    sees = "text and images" if pair.sees else "text"
    yield f"model     {shape.parameters / 1e9:.3g} G parameters, context {shape.context}, {sees}"
    parsers = f"{family.reasoning_parser or 'none'}, {family.tool_call_parser or 'none'}"
    yield f"thinking  {family.thinking}; parsers {parsers}"
    for seen in family.acceptance:
        drafts = f"{seen.draft_tokens} draft tokens"
        yield f"accepted  {seen.length:g} tokens a step: {seen.workload}, {drafts} [{seen.source}]"
    yield f"sources   {pair.target.source or 'none'}; {family.source}"


def _weights(weights: Weights) -> str:
    revision = f"@{weights.revision[:10]}" if weights.revision else ""
    file = f", {weights.file}" if weights.file else ""
    gated = ", gated" if weights.gated else ""
    licence = weights.licence or "no licence stated"
    return (
        f"{weights.repo or weights.bundled or weights.path}{revision}{file}, {size_of(weights.bytes)}, {licence}{gated}"
    )


models.command("list")(models_list)
models.command("show")(models_show)
models.command("use")(models_use)
models.command("add")(models_add)
models.command("rm")(models_rm)
models.command("prune")(models_prune)


EXAMPLES = (
    "models convert gguf ./drafter --target ./27b",
    "models convert gguf ./drafter --target ./27b --quantize Q4_K_M",
)

convert = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Convert a drafter to another format: gguf.",
    epilog=examples(*EXAMPLES),
)


@command(changes=True, examples=EXAMPLES)
def models_convert_gguf(
    drafter: Annotated[Path, typer.Argument(help="Directory of the drafter: config.json and safetensors.")],
    target: Annotated[Path, typer.Option(help="Directory of its target: config.json and tokenizer files are enough.")],
    out: Annotated[Path | None, typer.Option(help="The file to write; else beside the drafter.")] = None,
    form: Annotated[
        str, typer.Option("--quantise", "--quantize", help="Quantization, such as Q8_0, Q4_K_M, BF16.")
    ] = "Q8_0",
    engine: Annotated[
        str, typer.Option(help="llamacpp, or llamacpp-buun: they read different drafters.")
    ] = Llamacpp.name,
    image: Annotated[str | None, typer.Option(help="Image with the tools; else the release's own.")] = None,
) -> Report:
    """Convert a drafter for llama.cpp, with the tokenizer of its target, and quantize it."""
    from dflash_deploy.operations.pull import convert_drafter

    done = convert_drafter(drafter, target, out=out, form=form, engine=engine, image=image, reporter=terminal())
    shown = (
        f"written   {done.file}, {size_of(done.bytes)}, {done.form}, architecture {done.architecture}",
        f"for       {done.title}",
        f"next      {Settings.dflash_drafter}={done.file.parent} and {Settings.drafter_file}={done.file.name} in .env",
    )
    return Report(done, shown)


convert.command("gguf")(models_convert_gguf)
models.add_typer(convert, name="convert")
