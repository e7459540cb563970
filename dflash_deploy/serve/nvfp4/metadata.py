"""The metadata of a checkpoint's quantization in ModelOpt's two layouts, and its form for vLLM's reader of NVFP4.

hf_quant_config.json has `{"producer": ..., "quantization": {"quant_algo": ..., "exclude_modules": [...]}}`; config.json
has `quantization_config: {"quant_method": "modelopt", "quant_algo": ..., "ignore": [...]}`.
"""

from __future__ import annotations

from collections.abc import Mapping

ALGORITHM = "NVFP4_AWQ"

GROUP = 16  # columns that share a scale; NVFP4 allows only this number


def states_awq(config: object) -> bool:
    """Whether a `quantization_config`, in either layout, names this algorithm."""
    if not isinstance(config, Mapping):
        return False
    return str(_stated(config).get("quant_algo", "")).upper() == ALGORITHM


def as_nvfp4(config: Mapping[str, object]) -> dict[str, object]:
    """The same checkpoint without its `pre_quant_scale`, for vLLM's own reader of NVFP4.

    Adds fields that the reader requires and some exports omit. Raises ValueError for a group size other than NVFP4's.
    """
    stated = _stated(config)
    size = stated.get("group_size")
    if size is not None and str(size) != str(GROUP):
        raise ValueError(f"{ALGORITHM} has groups of {GROUP} columns, and the checkpoint says group_size {size}")
    if "quantization" in config:
        complete: dict[str, object] = {"group_size": GROUP, "kv_cache_quant_algo": None, "exclude_modules": []}
        return {**config, "quantization": {**complete, **stated, "quant_algo": "NVFP4"}}
    # vLLM reads only `ignore` here before 0.33
    excluded = stated.get("ignore", stated.get("exclude_modules", []))
    return {**config, "quant_algo": "NVFP4", "group_size": GROUP, "ignore": excluded}


def _stated(config: Mapping[str, object]) -> Mapping[str, object]:
    inner = config.get("quantization", config)
    return inner if isinstance(inner, Mapping) else {}
