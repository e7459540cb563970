"""`models convert gguf`: a drafter's safetensors as a GGUF, by llama.cpp's own tools in its container."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dflash_deploy.cli.report import Json, Report, note, verb

convert = typer.Typer(help="Bring a drafter into another form: gguf.", no_args_is_help=True)


@verb
def gguf(
    drafter: Annotated[Path, typer.Argument(help="Directory of the drafter: config.json and safetensors.")],
    target: Annotated[Path, typer.Option(help="Directory of its target: config.json and tokenizer files are enough.")],
    out: Annotated[Path | None, typer.Option(help="The file to write; else beside the drafter.")] = None,
    form: Annotated[str, typer.Option("--quantise", "--quantize", help="Such as Q8_0, Q4_K_M, BF16.")] = "Q8_0",
    engine: Annotated[str, typer.Option(help="llamacpp, or llamacpp-buun: they read different drafters.")] = "llamacpp",
    image: Annotated[str | None, typer.Option(help="Image with the tools; else the release's own.")] = None,
    as_json: Json = False,
) -> Report:
    """Convert a drafter for llama.cpp, with the tokenizer of its target, and quantise it."""
    from dflash_deploy.catalog import load_catalog
    from dflash_deploy.errors import ConversionFailed, NotPossible
    from dflash_deploy.runtime.container_job import ContainerJob, run_job
    from dflash_deploy.weights.convert import DRAFTER, OUT, TARGET, Conversion

    releases = load_catalog().engines.values()
    release = next((one for one in releases if engine in {one.engine, one.name} and one.converter), None)
    if release is None or release.converter is None:
        raise NotPossible(f"{engine} is no engine that reads GGUFs", hint="--engine llamacpp, or llamacpp-buun")
    form = form.upper()
    aim = out if out is not None else drafter / f"{drafter.resolve().name}-{form}.gguf"
    dialect = release.converter.architecture
    conversion = Conversion(drafter, target, aim.absolute(), form, dialect)
    conversion.check()
    aim.parent.mkdir(parents=True, exist_ok=True)
    try:
        with conversion.sources() as source:
            mounts = {DRAFTER: (source, False), TARGET: (target, False), OUT: (conversion.out.parent, True)}
            for command in conversion.commands():
                note(f"{release.title}: {' '.join(command)}")
                done = run_job(ContainerJob(image or release.converter.image, command, mounts), note)
                if done.status:
                    raise ConversionFailed(
                        f"{command[0]} ended with {done.status}: {done.last}",
                        hint="read the lines above; another release of the tools may do it: --image IMAGE",
                    )
        conversion.finish()
    finally:
        conversion.clear()
    size = conversion.out.stat().st_size
    data = {"file": str(conversion.out), "bytes": size, "architecture": dialect, "form": form}
    shown = (
        f"written   {conversion.out}, {size / 1e9:.2f} GB, {form}, architecture {dialect}",
        f"for       {release.title}",
        f"next      DFLASH_DRAFTER={conversion.out.parent} and DRAFTER_FILE={conversion.out.name} in .env",
    )
    return Report(data, shown)


convert.command("gguf")(gguf)
