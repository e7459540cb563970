"""`models list`, `show`, `use`, `add`, `convert`: targets with their drafters, and what can serve them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli import options
from dflash_deploy.cli.command import command, examples, terminal
from dflash_deploy.cli.options import Drafter, Profile, size_of, sizes_of
from dflash_deploy.cli.shown import Grid, Report, Shown
from dflash_deploy.cli.upgrade import models_use
from dflash_deploy.serve.engines.llamacpp import Llamacpp
from dflash_deploy.serve.settings import Settings

if TYPE_CHECKING:
    from dflash_deploy.catalog.models import ModelPair, Weights
    from dflash_deploy.operations.models import Models
    from dflash_deploy.rules.table import Candidate


models = typer.Typer(
    help="Models with their drafters: list, show, use, add, convert.",
    invoke_without_command=True,
    rich_markup_mode=None,
    epilog=examples("models list --profile rtx-5090", "models show qwen3.6-27b-fp8"),
)


@models.callback()
def _list_them(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        models_list(profile=None, everything=False, shared=context)


@command(examples=("models list", "models list --profile rtx-5090"))
def models_list(
    profile: Profile = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also list models that are not compatible, with the reason.")
    ] = False,
) -> Report:
    """List models with their drafters that are compatible with this machine, or with --profile."""
    from dflash_deploy.operations.models import models

    found = models(profile)
    good = Grid("model", "weights", "engine", "context", "concurrency", "notes", wraps=("engine", "notes"))
    fitting = [candidate for candidate in found.candidates if not candidate.why_not]
    for candidate in sorted(fitting, key=lambda candidate: candidate.pair.name != found.default):
        good.add_row(*_compatible(candidate, default=candidate.pair.name == found.default))
    return Report(found, (f"compatible with {found.title}", good, "", *_others(found, everything)))


def _others(found: Models, everything: bool) -> tuple[Shown, ...]:
    """The models that are not compatible: all of them, or how many there are."""
    bad = Grid("model", "why not")
    for candidate in (candidate for candidate in found.candidates if candidate.why_not):
        bad.add_row(candidate.pair.name, candidate.why_not)
    if everything:
        return "not compatible", bad
    return (f"{len(bad.rows)} others are not compatible: --all shows why",)


def _compatible(candidate: Candidate, *, default: bool) -> tuple[str, ...]:
    plan, pair = candidate.plan, candidate.pair
    assert plan is not None  # noqa: S101 - a candidate without a reason against it has a plan
    length, concurrency = str(plan.settings.max_model_len or ""), str(plan.settings.max_num_seqs or "")
    size = sizes_of(pair.target.bytes, pair.drafter.bytes)
    notes = {
        "default": default,
        "images": pair.sees,
        "tools": pair.family.tool_call_parser is not None,
        "no safety alignment": not pair.target.aligned,
        "gated": pair.target.gated or pair.drafter.gated,
    }
    return (
        pair.name,
        size,
        plan.engine.name,
        length,
        concurrency,
        ", ".join(note for note in notes if notes[note]) or "-",
    )


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
