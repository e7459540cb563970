"""The entry point that vLLM calls in each of its processes (`vllm.general_plugins`, docs/design/plugin_system).

It wraps one method of vLLM's: that which reads a checkpoint's `quantization_config` before anything else does, and
refuses an algorithm that it does not know. Other checkpoints pass through it untouched, and nothing more is imported.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

from dflash_deploy.serve.engines.installed import installed_vllm
from dflash_deploy.serve.engines.vllm import Version, minor_version
from dflash_deploy.serve.nvfp4.metadata import ALGORITHM, states_awq
from dflash_deploy.serve.refusal import Refused

OLDEST: Version = (0, 26)
NEWEST: Version = (0, 33)
"""Releases that it is known to fit: 0.32.0 was run whole, 0.26.0 and 0.33.0 as far as layers and configuration go."""

# vLLM shows what is logged below its own name
_log = logging.getLogger("vllm.dflash")


def register() -> None:
    """Teach this process's vLLM the form. Does nothing, with a line in the log, in a release that is not known.

    May be called again; each process of vLLM calls it once.
    """
    engine = installed_vllm()
    version = "of no known version" if engine is None else engine.version
    if not _known(version):
        _log.info("the loader of NVFP4_AWQ is for vLLM 0.26 to 0.33, and stays out of this one (%s)", version)
        return
    try:
        from vllm.transformers_utils.model_arch_config_convertor import ModelArchConfigConvertorBase

        reader = ModelArchConfigConvertorBase._normalize_quantization_config
    except (ImportError, AttributeError) as error:
        _log.warning(
            "the loader of NVFP4_AWQ stays out of this vLLM %s, which is laid out differently: %s", version, error
        )
        return
    if not hasattr(reader, "__wrapped__"):
        ModelArchConfigConvertorBase._normalize_quantization_config = _recognising(reader)


def _known(version: str) -> bool:
    try:
        return OLDEST <= minor_version(version) <= NEWEST
    except Refused:
        return False


def _recognising(reader: Any) -> Any:
    @functools.wraps(reader)
    def normalize(self: object, config: object) -> object:
        stated = getattr(config, "quantization_config", None)
        if stated is None or not states_awq(stated) or _loads_by_itself():
            return reader(self, config)
        # importing it registers it with vLLM under NVFP4's name
        from dflash_deploy.serve.nvfp4 import config as loader

        stated["quant_method"] = loader.METHOD
        return stated

    return normalize


def _loads_by_itself() -> bool:
    """Whether this build brings a loader of its own, as some images do."""
    from vllm.model_executor.layers.quantization import modelopt

    return ALGORITHM in modelopt.QUANT_ALGOS
