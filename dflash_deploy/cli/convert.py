"""`models convert gguf`: a drafter's safetensors as a GGUF, by llama.cpp's own tools in its container."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dflash_deploy.cli.command import command, examples, terminal
from dflash_deploy.cli.options import Json, size_of
from dflash_deploy.cli.shown import Report
from dflash_deploy.serve.engines.llamacpp import Llamacpp
from dflash_deploy.serve.settings import Settings

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
    as_json: Json = False,
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
