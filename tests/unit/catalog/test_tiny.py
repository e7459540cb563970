"""The files of the tiny target are those that its training writes, and answer a client that sends no options."""

import json

from dflash_deploy.assets import asset
from models.training.chat import TEMPLATE


def test_the_chat_template_is_the_one_of_the_training() -> None:
    assert (asset("models/tiny/target") / "chat_template.jinja").read_text() == TEMPLATE


def test_without_a_temperature_decoding_is_greedy() -> None:
    """vLLM reads `temperature` of this file and not `do_sample` (0.32, config/model.py, get_diff_sampling_param)."""
    generation = json.loads((asset("models/tiny/target") / "generation_config.json").read_text())
    assert generation["temperature"] == 0


def test_the_interval_of_layers_with_full_attention_says_the_same_as_their_list() -> None:
    """SGLang reads only the interval (0.5.23, configs/qwen3_next.py, layers_block_type), and has no default."""
    text = json.loads((asset("models/tiny/target") / "config.json").read_text())["text_config"]
    full = [number for number, kind in enumerate(text["layer_types"], 1) if kind == "full_attention"]
    interval = text["full_attention_interval"]
    assert full == list(range(interval, text["num_hidden_layers"] + 1, interval))


def test_no_layer_of_the_vision_tower_adds_features_of_its_own() -> None:
    """Without the field SGLang assumes layers 8, 16 and 24 (0.5.23, configs/qwen3_vl.py), and fails at an image."""
    vision = json.loads((asset("models/tiny/target") / "config.json").read_text())["vision_config"]
    assert vision["deepstack_visual_indexes"] == []
