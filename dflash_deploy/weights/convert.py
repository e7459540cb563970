"""Making a GGUF of a drafter: which commands llama.cpp's own tools get, and whether what they wrote is a drafter.

z-lab's drafters come without a tokenizer. llama.cpp's converter takes the target's (`--target-model-dir`); the buun
fork's wants its files beside the drafter's. Sources: llama.cpp b11434 conversion/qwen.py; the card of
spiritbuun/Qwen3.5-27B-DFlash-GGUF.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from dflash_deploy.errors import BadInput, ConversionFailed
from dflash_deploy.plan.model_metadata import metadata_of
from dflash_deploy.weights.gguf import FILE_TYPES, Header, NotGguf, read_header
from dflash_deploy.weights.staging import link_or_copy, writing

Dialect = Literal["dflash", "dflash-draft"]
"""`general.architecture` of what is written: upstream's, or the fork's."""

CONVERTED = {"F32": "f32", "F16": "f16", "BF16": "bf16", "Q8_0": "q8_0"}
"""Forms that the converter writes by itself; all others are quantised from BF16."""

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
    """A drafter's directory, its target's, and the file to make of them, in one of FILE_TYPES."""

    drafter: Path
    target: Path
    out: Path
    form: str
    dialect: Dialect

    def commands(self) -> Iterator[tuple[str, ...]]:
        """What the entry point of llama.cpp's `full` image gets, one run after the other. Paths are the container's."""
        quantised = self.form not in CONVERTED
        first = f"{OUT}/{self._partial if not quantised else self._between}"
        kind = CONVERTED.get(self.form, "bf16")
        source = ("--target-model-dir", TARGET) if self.dialect == "dflash" else ()
        yield ("--convert", DRAFTER, "--outtype", kind, "--outfile", first, *source)
        if quantised:
            yield ("--quantize", first, f"{OUT}/{self._partial}", self.form)

    @property
    def _partial(self) -> str:
        return f".{self.out.name}.part.gguf"

    @property
    def _between(self) -> str:
        return f".{self.out.name}.bf16.gguf"

    def check(self) -> None:
        """Whether this can be tried at all. Raises BadInput."""
        if self.form not in FILE_TYPES.values():
            raise BadInput(f"{self.form} is no form of a GGUF", hint=f"one of {', '.join(FILE_TYPES.values())}")
        if self.out.suffix != ".gguf":
            raise BadInput(f"{self.out.name} does not end in .gguf", hint="llama.cpp and people know it by its name")
        for directory, role in ((self.drafter, "drafter"), (self.target, "target")):
            if not (directory / "config.json").is_file():
                raise BadInput(
                    f"{directory} has no config.json: it is not the {role} as transformers reads it",
                    hint="a GGUF is made from safetensors: `hf download REPOSITORY --local-dir DIR` brings them",
                )
        if not any((self.target / name).is_file() for name in TOKENIZER_FILES):
            raise BadInput(
                f"{self.target} has no tokenizer, which the drafter shares",
                hint="take the files from the target's own repository; its weights are not needed",
            )

    @contextmanager
    def sources(self) -> Iterator[Path]:
        """The drafter's directory as its converter wants it: for the fork with the target's tokenizer beside it."""
        if self.dialect == "dflash":
            yield self.drafter.resolve()
            return
        with writing(self.out.parent), TemporaryDirectory(dir=self.out.parent, prefix=".convert-") as made:
            place = Path(made)
            # the container's user is another one than the directory's maker where the engine maps users
            place.chmod(0o755)
            for entry in self.drafter.iterdir():
                if entry.is_file():
                    link_or_copy(entry, place / entry.name)
            for name in TOKENIZER_FILES:
                if (self.target / name).is_file():
                    link_or_copy(self.target / name, place / name)
            yield place

    def finish(self) -> Header:
        """Give what was written its name, if it is what was asked for. Raises ConversionFailed and leaves nothing."""
        partial = self.out.with_name(self._partial)
        try:
            header = read_header(partial)
        except (OSError, NotGguf) as problem:
            raise ConversionFailed(f"no GGUF came of it: {problem}", hint="read the converter's lines above") from None
        for difference in self._problems(header):
            raise ConversionFailed(f"what was written is not the drafter: {difference}", hint=_REPORT)
        partial.replace(self.out)
        return header

    def _problems(self, header: Header) -> Iterator[str]:
        written = metadata_of(header)
        config = metadata_of(json.loads((self.drafter / "config.json").read_text("utf-8")))
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
            yield f"its form is {form}, not {self.form}"

    def clear(self) -> None:
        """Take away what is half-written."""
        for name in (self._partial, self._between):
            self.out.with_name(name).unlink(missing_ok=True)


_REPORT = "another release of llama.cpp may know this drafter: --image IMAGE"
