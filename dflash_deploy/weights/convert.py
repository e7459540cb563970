"""Convert a drafter to GGUF: the commands for llama.cpp's tools, and checks of the result.

z-lab's drafters have no tokenizer. llama.cpp's converter reads the target's (`--target-model-dir`); the buun fork's
converter expects the tokenizer's files in the drafter's directory. Sources: llama.cpp b11434 conversion/qwen.py; the
model card of spiritbuun/Qwen3.5-27B-DFlash-GGUF.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dflash_deploy.deployment.files import replace_durably
from dflash_deploy.errors import BadInput, ConversionFailed, DirectoryBusy, FileRefused
from dflash_deploy.plan.model_metadata import metadata_of
from dflash_deploy.weights.checkpoints import read_config
from dflash_deploy.weights.fetch import link_or_copy, named_write_errors
from dflash_deploy.weights.gguf import FILE_TYPES, Header, NotGguf, read_header

# `general.architecture` of the GGUF: that of upstream llama.cpp, or that of the fork.
Dialect = Literal["dflash", "dflash-draft"]

# Quantizations that the converter writes directly; all others are quantized from BF16.
CONVERTED = {"F32": "f32", "F16": "f16", "BF16": "bf16", "Q8_0": "q8_0"}

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.model",
)
DRAFTER, TARGET, OUT = "/drafter", "/target", "/out"


@dataclass(frozen=True)
class Conversion:
    """The directories of drafter and target, and the GGUF to write, with a quantization (`form`) of FILE_TYPES."""

    drafter: Path
    target: Path
    out: Path
    form: str
    dialect: Dialect

    def commands(self) -> Iterator[tuple[str, ...]]:
        """Yield the arguments for llama.cpp's `full` image, one run after the other, with paths of the container."""
        quantized = self.form not in CONVERTED
        first = f"{OUT}/{self._partial if not quantized else self._between}"
        kind = CONVERTED.get(self.form, "bf16")
        source = ("--target-model-dir", TARGET) if self.dialect == "dflash" else ()
        yield ("--convert", DRAFTER, "--outtype", kind, "--outfile", first, *source)
        if quantized:
            yield ("--quantize", first, f"{OUT}/{self._partial}", self.form)

    @property
    def _partial(self) -> str:
        return f".{self.out.name}.part.gguf"

    @property
    def _joined(self) -> Path:
        """The directory with the files of drafter and target, for a converter that reads one."""
        return self.out.with_name(f".{self.out.name}.sources")

    @property
    def _between(self) -> str:
        return f".{self.out.name}.bf16.gguf"

    def check(self) -> None:
        """Raise BadInput if the conversion cannot work."""
        if self.form not in FILE_TYPES.values():
            raise BadInput(
                f"`{self.form}` is not a valid GGUF quantization", hint=f"use one of {', '.join(FILE_TYPES.values())}"
            )
        if self.out.suffix != ".gguf":
            raise BadInput(f"`{self.out.name}` does not end in .gguf", hint="choose a file name that ends in .gguf")
        for directory, role in ((self.drafter, "drafter"), (self.target, "target")):
            if not (directory / "config.json").is_file():
                raise BadInput(
                    f"{directory} has no config.json: it is not the {role} in Transformers format",
                    hint="a GGUF is made from safetensors: download them with `hf download REPOSITORY --local-dir DIR`",
                )
        if not any((self.target / name).is_file() for name in TOKENIZER_FILES):
            raise BadInput(
                f"{self.target} has no tokenizer, which the drafter needs",
                hint="download the tokenizer's files from the target's repository; its weights are not needed",
            )

    @contextmanager
    def sources(self) -> Iterator[Path]:
        """Yield the directory for the converter: for the fork, the drafter's files with the target's tokenizer."""
        if self.dialect == "dflash":
            yield self.drafter.resolve()
            return
        place = self._joined
        try:
            with named_write_errors(self.out.parent):
                self._join(place)
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _join(self, place: Path) -> None:
        place.mkdir()
        # with user namespaces, the container's user is not the owner of the directory
        place.chmod(0o755)
        for entry in self.drafter.iterdir():
            if entry.is_file():
                link_or_copy(entry, place / entry.name)
        for name in TOKENIZER_FILES:
            if (self.target / name).is_file():
                link_or_copy(self.target / name, place / name)

    def finish(self) -> Header:
        """Check the GGUF and rename it to its final name. Raises ConversionFailed if it is wrong."""
        partial = self.out.with_name(self._partial)
        try:
            header = read_header(partial)
        except (FileRefused, NotGguf) as problem:
            raise ConversionFailed(
                f"the converter wrote no valid GGUF: {problem}", hint="read the converter's output above"
            ) from None
        for difference in self._problems(header):
            raise ConversionFailed(f"the converted file does not match the drafter: {difference}", hint=_REPORT)
        with named_write_errors(self.out.parent):
            replace_durably(partial, self.out)
        return header

    def _problems(self, header: Header) -> Iterator[str]:
        written = metadata_of(header)
        config = metadata_of(read_config(self.drafter / "config.json"))
        if written.architecture != self.dialect:
            yield f"its architecture is {written.architecture}, not {self.dialect}"
        for name in ("hidden_size", "block_size", "deepest_layer"):
            made, meant = getattr(written, name), getattr(config, name)
            if meant is not None and made != meant:
                yield f"its {name} is {made}, config.json says {meant}"
        if not written.vocabulary:
            yield "it has no vocabulary"
        form = FILE_TYPES.get(int(str(header.get("general.file_type", -1))))
        if form != self.form:
            yield f"its quantization is {form}, not {self.form}"

    def clear(self) -> None:
        """Remove partial files. A link in the place of one is removed too: the converter would write through it."""
        for name in (self._partial, self._between):
            self.out.with_name(name).unlink(missing_ok=True)
        shutil.rmtree(self._joined, ignore_errors=True)

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Hold the directory of the GGUF for one conversion, without partial files before and after.

        Raises DirectoryBusy if another one runs there. The system ends the hold of a command that is killed.
        """
        with named_write_errors(self.out.parent), ExitStack() as held:
            descriptor = os.open(self.out.parent, os.O_RDONLY | os.O_DIRECTORY)
            held.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DirectoryBusy(
                    f"another conversion writes into {self.out.parent}",
                    hint="wait until it ends, then run the command again",
                ) from None
            held.callback(self.clear)
            self.clear()
            # errors of the block are its own
            kept = held.pop_all()
        with kept:
            yield


_REPORT = "another release of llama.cpp may support this drafter: choose one with `--image IMAGE`"
