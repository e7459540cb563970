"""The entry point that vLLM calls in each of its processes (`vllm.general_plugins`, docs/design/plugin_system).

It wraps the one method of vLLM that first reads a checkpoint's `quantization_config` and rejects unknown algorithms.
Other checkpoints pass through it unchanged, and nothing more is imported for them.
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
# Supported releases: with 0.32.0 the whole engine was run, with 0.26.0 and 0.33.0 the layers and the configuration.
NEWEST: Version = (0, 33)

# vLLM shows the messages of loggers below its own name
_log = logging.getLogger("vllm.dflash")


def register() -> None:
    """Make this process's vLLM load NVFP4_AWQ. Logs a line and does nothing in a release that is not supported.

    May be called again; each process of vLLM calls it once.
    """
    engine = installed_vllm()
    version = "of no known version" if engine is None else engine.version
    if not _known(version):
        _log.info("the loader of NVFP4_AWQ supports vLLM 0.26 to 0.33, and is not loaded in this one (%s)", version)
        return
    try:
        from vllm.transformers_utils.model_arch_config_convertor import ModelArchConfigConvertorBase

        reader = ModelArchConfigConvertorBase._normalize_quantization_config
    except (ImportError, AttributeError) as error:
        _log.warning("the loader of NVFP4_AWQ is not loaded in vLLM %s, whose modules differ: %s", version, error)
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
        # the import registers it with vLLM under NVFP4's name
        from dflash_deploy.serve.nvfp4 import config as loader

        stated["quant_method"] = loader.METHOD
        return stated

    return normalize


def _loads_by_itself() -> bool:
    """Whether this build has its own loader, as some images do."""
    from vllm.model_executor.layers.quantization import modelopt

    return ALGORITHM in modelopt.QUANT_ALGOS
