"""Files of weights and of their download: config.json, headers of safetensors and GGUF files, records of parts."""

import os
import struct
from collections.abc import Callable
from functools import cache
from io import BytesIO
from pathlib import Path

from hypothesis import strategies as st

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.plan.result import Choice
from dflash_deploy.planning import UNREAD
from dflash_deploy.rules.table import plan_deployment
from dflash_deploy.serve.settings import Settings
from dflash_deploy.weights.check import check_weights, content_problem
from dflash_deploy.weights.checkpoints import read_checkpoints
from dflash_deploy.weights.download import resumed
from dflash_deploy.weights.fetch import missing_files
from dflash_deploy.weights.gguf import NotGguf, parse_header, read_header
from dflash_deploy.weights.lock import LockedFile, LockedModel
from tests.fuzz.hostile import TEXTS, damaged, json_documents
from tests.fuzz.kind import Kind
from tests.fuzz.places import place, put
from tests.support import gguf

CONFIG = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "dtype": "bfloat16",
    "text_config": {
        "hidden_size": 128,
        "num_hidden_layers": 8,
        "vocab_size": 1024,
        "max_position_embeddings": 4096,
        "layer_types": ["linear_attention", "full_attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "mtp_num_hidden_layers": 1,
    },
    "quantization_config": {"quant_method": "fp8", "bits": 8},
}
DRAFTER = {
    "architectures": ["DFlashDraftModel"],
    "vocab_size": 1024,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "max_position_embeddings": 4096,
    "rope_scaling": {"type": "yarn", "factor": 4.0},
    "block_size": 8,
    "dflash_config": {"block_size": 8, "mask_token_id": 1021, "target_layer_ids": [1, 3, 6]},
}
TOKENIZER = {"chat_template": "{{ messages }}", "added_tokens_decoder": {"1": {"content": "<a>"}}, "bos_token": None}
QUANTIZED = {"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}}
HEADER = {"a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}, "__metadata__": {"format": "pt"}}
INDEX = {"metadata": {"total_size": 16}, "weight_map": {"a": "model.safetensors", "mtp.b": "model.safetensors"}}
RECORD = {"size": 100, "identity": "a" * 64, "etag": '"e"'}
STAMPS = {"x": [1, 1_700_000_000_000_000_000, "a" * 64]}


def plan_for(directory: Path, file: str = "", drafter: Path | None = None) -> object:
    """Read the metadata of weights and check a plan against it."""
    edited = {"DFLASH_PROFILE": "cpu", "DFLASH_PAIR": "tiny", "MODEL_HOST_PATH": str(directory), "MODEL_FILE": file}
    if file:
        edited = {
            "DFLASH_PROFILE": "rtx-3090",
            "MODEL_HOST_PATH": str(directory),
            "MODEL_FILE": file,
            "DFLASH_ENGINE": "llamacpp",
        }
    if drafter is not None:
        edited["DRAFTER_HOST_PATH"] = str(drafter)
    settings = Settings(edited | {"DFLASH_DRAFTER": "on", "DRAFTER_HOST_PATH": str(drafter or directory)})
    found = read_checkpoints(settings, Path)
    mtp = read_checkpoints(Settings(edited | {"DFLASH_DRAFTER": "mtp"}), Path)
    plan = plan_deployment(UNREAD, Choice(edited=edited), load_catalog(), found)
    return [found, mtp, *(finding.message for finding in plan.findings)]


def weights(name: str) -> Callable[[bytes], object]:
    """A reader of one file in a directory whose other files are sound."""

    def read(content: bytes) -> object:
        directory = put(f"{name}-weights/model.safetensors", _safetensors(b"{}")).parent
        put(f"{name}-weights/config.json", b'{"architectures": ["A"]}')
        put(f"{name}-weights/{name}", content)
        made = plan_for(directory)
        check_weights(directory, role="target", remedy="pull")
        return made

    return read


def read_gguf(content: bytes) -> object:
    """Read the header of a GGUF, and a plan for it."""
    file = put("gguf/x.gguf", content)
    if content.endswith(bytes(8)):
        # the rest of a file that was never written takes no room on the disk
        os.truncate(file, 2**40)
    try:
        return read_header(file)
    except NotGguf as problem:
        if not str(problem) or len(str(problem)) > 300:
            raise
    return plan_for(file.parent, file.name)


def parse_gguf(content: bytes) -> object:
    """Only parse the header of a GGUF."""
    try:
        return parse_header(BytesIO(content), "x.gguf")
    except NotGguf as problem:
        return problem


def check_safetensors(content: bytes) -> object:
    """Only read the header of a safetensors file."""
    return content_problem(put("bare/model.safetensors", content))


def _safetensors(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header


@st.composite
def gguf_headers(draw: st.DrawFn) -> bytes:
    """A GGUF header with lists, texts and numbers of every length and kind."""
    sizes = st.sampled_from((0, 1, 2, 3, 100, 4096, 4097, 2**20, 2**20 + 1, 2**21, 2**21 + 1, 2**31, 2**63, 2**64 - 1))
    kinds = st.integers(0, 13) | st.sampled_from((8, 9, 4, 2**32 - 1))
    name = st.sampled_from(
        ("tokenizer.ggml.tokens", "tokenizer.ggml.merges", "general.architecture", "x.block_count", "x")
    )

    def entry() -> bytes:
        kind = draw(kinds)
        head = gguf.text(draw(name)) + struct.pack("<I", kind)
        if kind == 9:
            return head + struct.pack("<IQ", draw(kinds), draw(sizes)) + draw(st.binary(max_size=60))
        if kind == 8:
            return head + struct.pack("<Q", draw(sizes)) + draw(st.sampled_from(TEXTS)).encode("utf-8", "surrogatepass")
        return head + draw(st.binary(max_size=8))

    keys = b"".join(entry() for _ in range(draw(st.integers(0, 4))))
    version, tensors, count = draw(st.sampled_from((0, 1, 2, 3, 3, 3, 2**32 - 1))), draw(sizes), draw(sizes)
    return (
        b"GGUF"
        + struct.pack("<IQQ", version, tensors, count)
        + keys
        + bytes(draw(st.sampled_from((0, 8, 5000, 200_000))))
    )


def read_part(content: bytes) -> object:
    """Read the record of a partial download."""
    put(".pull/x.json", content)
    found = resumed(put(".pull/x.part", b"x" * 60).parent, LockedFile("x", 100, "a" * 64))
    assert found[0] in {0, 60}
    return found


def read_stamps(content: bytes) -> object:
    """Read the stamps of verified files: a file without the right digest stays missing."""
    put("stamps/x", b"y")
    put("stamps/.dflash-verified.json", content)
    file = LockedFile("x", 1, "a" * 64)
    assert missing_files(place() / "stamps", LockedModel("o/n", "c" * 40, (file,))) == (file,)
    return file


@cache
def kinds() -> tuple[Kind, ...]:
    """The kinds of this module."""
    sound = (
        gguf.model(
            "qwen3",
            ["a", "b", "<|im_end|>"],
            block_count=8,
            context_length=4096,
            rope__freq_base=1e6,
            target_layers=[1, 3],
        ),
        gguf.header(gguf.key("general.architecture", "dflash-draft"), gguf.key("dflash-draft.dflash.block_size", 16)),
    )
    headers = [_safetensors(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}') + bytes(8)]
    safetensors = st.tuples(
        json_documents(HEADER), st.sampled_from((0, 0, 0, 1, -1, 2**40, 2**63)), st.integers(0, 20)
    ).map(lambda made: ((len(made[0]) + made[1]) % 2**64).to_bytes(8, "little") + made[0] + bytes(made[2]))
    return (
        Kind("config.json", (), json_documents(CONFIG, DRAFTER), weights("config.json")),
        Kind("tokenizer_config.json", (), json_documents(TOKENIZER), weights("tokenizer_config.json")),
        Kind("hf_quant_config.json", (), json_documents(QUANTIZED), weights("hf_quant_config.json")),
        Kind("safetensors index", (), json_documents(INDEX), weights("model.safetensors.index.json")),
        Kind(
            "safetensors header",
            headers,
            safetensors | damaged(headers),
            weights("model.safetensors"),
            check_safetensors,
        ),
        Kind("GGUF header", sound, gguf_headers() | damaged(sound), read_gguf, parse_gguf),
        Kind(".pull record", (), json_documents(RECORD), read_part),
        Kind("verified stamps", (), json_documents(STAMPS), read_stamps),
    )
