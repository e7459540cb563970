"""The building blocks of all catalog files: entries that reject unknown keys, values with reasons, evidence."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Evidence = Literal["verified", "reported", "untested", "computed"]
"""`verified`: run by this project. `reported`: by the named source. `untested`: read or inferred, not run. `computed`:
another profile's settings with a GPU's own figures; no file of the catalog has it."""

Architecture = Literal["x86_64", "aarch64"]
"""The processor architecture, as `uname -m` prints it."""

Quantisation = Literal[
    "bf16",
    "fp8",
    "nvfp4-modelopt",
    "nvfp4-awq",
    "nvfp4-compressed-tensors",
    "mxfp4",
    "int4-autoround",
    "int4-awq",
    "gguf",
]
"""How a target's weights are stored.

`nvfp4-modelopt` is ModelOpt's `quant_algo: NVFP4`, `nvfp4-awq` its `NVFP4_AWQ` with `pre_quant_scale`, and
`nvfp4-compressed-tensors` llm-compressor's `nvfp4-pack-quantized`: three formats that need three loaders.
"""


AttentionTrait = Literal["image-prefix", "sinks", "latent"]
"""What a target's attention needs of a backend.

`image-prefix`: the tokens of an image attend to each other in both directions. `sinks`: each head has a learned sink.
`latent`: one compressed vector per token and layer (MLA).
"""


class Entry(BaseModel):
    """A node of a catalog file. Unknown keys are rejected; entries are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class CatalogSetting(Entry):
    """The value of one setting, with its reason."""

    value: Annotated[str | int | float | bool, Field(description="value; `.env` has it as text")]
    reason: Annotated[str, Field(min_length=10, description="why this value, in one sentence for the owner of the box")]
    source: Annotated[str, Field(description="source of the fact: a document or a measurement")] = ""


Settings = dict[str, CatalogSetting]
"""Settings by their name in `.env`."""


class Evidenced(Entry):
    """The evidence that an entry works."""

    state: Annotated[Evidence, Field(description="run by this project, reported by the source, untested, or computed")]
    by: Annotated[str, Field(description="who ran it, on which hardware, when; or the document that says so")]
