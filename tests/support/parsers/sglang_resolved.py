"""SGLang's own checks of its arguments on a GPU that is not here, with config.json and no weights.

`ServerArgs.resolve_once` is what a start runs after the parser: it reads both models' config.json, chooses what was
left out, and replaces or refuses what does not go together. `override_platform` is SGLang's own way to tell it which
GPU it has; only torch.cuda is patched. A backend without kernels for the GPU is not refused here, but later.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

from tests.support.parsers.absent import stub_absent
from tests.support.parsers.answers import answer, argparse_rejection

# Options that name a model, and its directory below that of the models.
_PLACES = {"--model-path": "target", "--speculative-draft-model-path": "drafter"}

# The values that are answered.
SHOWN = (
    *("attention_backend", "kv_cache_dtype", "max_running_requests", "chunked_prefill_size", "mem_fraction_static"),
    *("speculative_algorithm", "speculative_num_draft_tokens", "speculative_draft_attention_backend"),
    *("speculative_draft_model_quantization", "speculative_draft_window_size", "tp_size", "disable_radix_cache"),
)


def _facts(capability: str) -> dict[str, Any]:
    major, minor = map(int, capability.split("."))
    return {
        "is_cuda": True,
        "is_sm90": major == 9,
        "is_sm100": major == 10,
        "is_sm120": major == 12,
        "is_blackwell": major >= 10,
        "device_sm": major * 10 + minor,
    }


def _on(capability: str, gpus: str) -> Any:
    major, minor = map(int, capability.split("."))
    properties = MagicMock(major=major, minor=minor, total_memory=80 << 30, multi_processor_count=100)
    return patch.multiple(
        "torch.cuda",
        is_available=lambda: True,
        device_count=lambda: int(gpus),
        get_device_capability=lambda *_: (major, minor),
        get_device_name=lambda *_: "NVIDIA",
        get_device_properties=lambda *_: properties,
    )


def main() -> None:
    """Answer for the lists on standard input."""
    stub_absent()
    parse = importlib.import_module("sglang.srt.server_args").prepare_server_args
    override = importlib.import_module("sglang.srt.runtime_context").override_platform
    # before there is a GPU: what it imports then is not in the wheel
    importlib.import_module("sglang.srt.arg_groups.pipeline")
    importlib.import_module("sglang.srt.arg_groups.mamba_hook")
    view = importlib.import_module("sglang.srt.arg_groups.overrides").resolving_view

    # registered while it is imported, if there is a GPU
    methods = importlib.import_module("sglang.srt.layers.quantization")
    for registered in (methods.BASE_QUANTIZATION_METHODS, methods.QUANTIZATION_METHODS):
        registered["mxfp4"] = methods.Mxfp4Config

    def resolve(capability: str, gpus: str, models: str, *arguments: str) -> str:
        shown: dict[str, object] = {}

        def run() -> None:
            places = {option: str(Path(models) / name) for option, name in _PLACES.items()}
            replaced = [places.get(before, word) for before, word in zip(("", *arguments), arguments, strict=False)]
            parsed = parse([*replaced, "--device", "cuda"])
            with _on(capability, gpus), override(**_facts(capability)):
                parsed.resolve_once()
            resolved = view(parsed)
            shown.update({name: getattr(resolved, name) for name in SHOWN})

        refused = argparse_rejection(run)
        return json.dumps({"refused": refused, **shown}, default=str)

    answer(lambda words: resolve(*words))


if __name__ == "__main__":
    main()
