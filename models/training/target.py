"""The target and its training: a Qwen3.5 with 2.4 million weights, hybrid attention and a vision tower."""

import logging
import random
import time
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedTokenizerFast, Qwen3_5Config, Qwen3_5ForConditionalGeneration

from .encoding import IGNORED, Batch, Encoder, Example, batches, collate, in_order_of_length
from .optimiser import build_optimiser
from .settings import (
    MAX_POSITIONS,
    MERGE_SIZE,
    PATCH_SIZE,
    RMS_NORM_EPS,
    TEMPORAL_PATCH_SIZE,
    VOCABULARY_SIZE,
    TargetTraining,
)
from .tokenizer import END_OF_TEXT, END_OF_TURN, IMAGE_PAD, VIDEO_PAD, VISION_END, VISION_START

log = logging.getLogger(__name__)

HIDDEN_SIZE = 128
VISION_HIDDEN_SIZE = 64
FULL_ATTENTION_INTERVAL = 4
# Set twice in the configuration: newer engines read it in `rope_parameters`, older ones at the top level.
PARTIAL_ROTARY_FACTOR = 0.5


def target_config(tokenizer: PreTrainedTokenizerFast) -> Qwen3_5Config:
    """Eight layers, every fourth with full attention, and a vision tower of two layers."""

    def token_id(token: str) -> int:
        return int(tokenizer.convert_tokens_to_ids(token))

    text = {
        "vocab_size": VOCABULARY_SIZE,
        "hidden_size": HIDDEN_SIZE,
        "intermediate_size": 384,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "full_attention_interval": FULL_ATTENTION_INTERVAL,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "linear_conv_kernel_dim": 4,
        "max_position_embeddings": MAX_POSITIONS,
        "rms_norm_eps": RMS_NORM_EPS,
        "partial_rotary_factor": PARTIAL_ROTARY_FACTOR,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e4,
            "partial_rotary_factor": PARTIAL_ROTARY_FACTOR,
            "mrope_section": [6, 5, 5],
            "mrope_interleaved": True,
        },
        "eos_token_id": token_id(END_OF_TURN),
        "pad_token_id": token_id(END_OF_TEXT),
        "tie_word_embeddings": False,
    }
    vision = {
        "depth": 2,
        "hidden_size": VISION_HIDDEN_SIZE,
        "intermediate_size": 128,
        "num_heads": 4,
        "out_hidden_size": HIDDEN_SIZE,
        "num_position_embeddings": 64,
        "patch_size": PATCH_SIZE,
        "spatial_merge_size": MERGE_SIZE,
        "temporal_patch_size": TEMPORAL_PATCH_SIZE,
    }
    config = Qwen3_5Config(
        text_config=text,
        vision_config=vision,
        image_token_id=token_id(IMAGE_PAD),
        video_token_id=token_id(VIDEO_PAD),
        vision_start_token_id=token_id(VISION_START),
        vision_end_token_id=token_id(VISION_END),
        tie_word_embeddings=False,
    )
    # transformers reads it and does not write it; SGLang has no default, and does not read `layer_types`
    config.text_config.full_attention_interval = FULL_ATTENTION_INTERVAL
    # the same: SGLang assumes layers 8, 16 and 24, and this tower has two (0.5.23, configs/qwen3_vl.py)
    config.vision_config.deepstack_visual_indexes = []
    return config


def train_target(
    config: Qwen3_5Config, encoder: Encoder, examples: Sequence[Example], training: TargetTraining, seed: int
) -> Qwen3_5ForConditionalGeneration:
    """Trains on the replies in `examples` and on random images; returns the model in bfloat16, as it is served."""
    torch.manual_seed(seed)
    model = Qwen3_5ForConditionalGeneration(config).train()
    optimiser = build_optimiser(model, training.schedule)
    rng = random.Random(seed)  # noqa: S311 - nothing secret
    stream = _endless_batches(encoder, examples, training, rng, config.image_token_id)
    began = time.monotonic()
    for step in range(1, training.schedule.steps + 1):
        loss = _loss(model, next(stream))
        optimiser.step(loss)
        if step % 50 == 0:
            log.info("target step %d: loss %.4f, %.0f s", step, loss.item(), time.monotonic() - began)
    return model.to(torch.bfloat16).eval()


def _endless_batches(
    encoder: Encoder, examples: Sequence[Example], training: TargetTraining, rng: random.Random, image_token_id: int
) -> Iterator[Batch]:
    """Text batches without end; every `image_batch_every`-th batch has images instead."""
    count = 0
    while True:
        for batch in batches(examples, training.tokens_per_batch, rng):
            count += 1
            if count % training.image_batch_every == 0:
                count += 1
                yield collate(encoder.random_images(training.images_per_batch, rng), image_token_id)
            yield collate(batch, image_token_id)


def _loss(model: Qwen3_5ForConditionalGeneration, batch: Batch) -> Tensor:
    """Mean cross-entropy over the tokens of the replies."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(input_ids=batch.tokens, use_cache=False, **batch.images).logits
    labels = batch.labels[:, 1:].flatten()
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels, ignore_index=IGNORED)


def exact_share(
    model: Qwen3_5ForConditionalGeneration, examples: Sequence[Example], tokens_per_batch: int = 4096
) -> float:
    """Share of the replies that greedy decoding reproduces exactly.

    One pass per reply is enough: if the argmax is correct after every correct prefix, decoding follows the reply.
    """
    right = 0
    for group in in_order_of_length(examples, tokens_per_batch):
        batch = collate(group, model.config.image_token_id)
        with torch.inference_mode():
            logits = model(input_ids=batch.tokens, use_cache=False, **batch.images).logits
        guesses = logits[:, :-1].argmax(-1)
        labels = batch.labels[:, 1:]
        right += int(((guesses == labels) | (labels == IGNORED)).all(dim=1).sum())
    return right / len(examples)
