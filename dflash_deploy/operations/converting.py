"""`models convert gguf`: a drafter's safetensors as a GGUF, by llama.cpp's own tools in its container."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dflash_deploy.catalog import load_catalog
from dflash_deploy.deployment.outputs import check_output
from dflash_deploy.errors import ConversionFailed, NotPossible
from dflash_deploy.operations.reporter import SILENT, Reporter
from dflash_deploy.runtime.container_job import ContainerJob, run_job
from dflash_deploy.serve.engines.llamacpp import Llamacpp, LlamacppBuun
from dflash_deploy.weights.convert import DRAFTER, OUT, TARGET, Conversion


@dataclass(frozen=True)
class Converted:
    """A drafter as a GGUF. `form` is its quantization, `architecture` the one in its header, `title` the engine."""

    file: Path
    bytes: int
    architecture: str
    form: str
    title: str

    def document(self) -> dict[str, object]:
        """The `data` of `models convert gguf --json`."""
        return {"file": str(self.file), "bytes": self.bytes, "architecture": self.architecture, "form": self.form}


def convert_drafter(
    drafter: Path,
    target: Path,
    *,
    out: Path | None = None,
    form: str = "Q8_0",
    engine: str = Llamacpp.name,
    image: str | None = None,
    reporter: Reporter = SILENT,
) -> Converted:
    """Convert a drafter for llama.cpp with the tokenizer of its target, and quantize it.

    `drafter` and `target` are directories; the file goes beside the drafter unless `out` names another one. `image` has
    llama.cpp's tools; else the engine release names it. Raises NotPossible, ConversionFailed, EngineMissing.
    """
    releases = load_catalog().engines.values()
    release = next((one for one in releases if engine in {one.engine, one.name} and one.converter), None)
    if release is None or release.converter is None:
        raise NotPossible(
            f"`{engine}` is not an engine that reads GGUFs", hint=f"use --engine {Llamacpp.name} or {LlamacppBuun.name}"
        )
    form = form.upper()
    aim = out if out is not None else drafter / f"{drafter.resolve().name}-{form}.gguf"
    dialect = release.converter.architecture
    conversion = Conversion(drafter, target, aim.absolute(), form, dialect)
    conversion.check()
    aim.parent.mkdir(parents=True, exist_ok=True)
    check_output(aim)
    with conversion.claimed(), conversion.sources() as source:
        mounts = {DRAFTER: (source, False), TARGET: (target, False), OUT: (conversion.out.parent, True)}
        for command in conversion.commands():
            reporter.note(f"{release.title}: {' '.join(command)}")
            done = run_job(ContainerJob(image or release.converter.image, command, mounts), reporter.note)
            if done.status:
                raise ConversionFailed(
                    f"{command[0]} ended with {done.status}: {done.last}",
                    hint="read the lines above; another release of the tools may do it: --image IMAGE",
                )
        conversion.finish()
    return Converted(conversion.out, conversion.out.stat().st_size, dialect, form, release.title)
