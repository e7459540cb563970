"""The command line: trains target, drafter and MTP head, measures them and writes their files."""

import argparse
import logging
import random
import time
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast, Qwen3_5ForConditionalGeneration

from . import settings
from .corpus import Item, build_corpus
from .distil import Distiller
from .encoding import Encoder, Example
from .export import export_drafter, export_head, export_target
from .features import trace
from .images import ONE_WORD_QUESTIONS, QUESTIONS, image_processor
from .mtp_head import trace_for_head
from .mtp_training import HeadTrainer
from .prompts import write_prompts
from .settings import DrafterTraining, HeadTraining, TargetTraining
from .target import exact_share, target_config, train_target
from .tokenizer import MASK, train_tokenizer

log = logging.getLogger("models.training")


def main() -> None:
    """Trains all models and writes them to the directory given by `--out`."""
    parser = argparse.ArgumentParser(prog="python -m models.training", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="directory for target/, drafter/ and prompts.jsonl")
    parser.add_argument("--head-only", action="store_true", help="only train the MTP head of the target in --out")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    began = time.monotonic()
    if arguments.head_only:
        train_head_of(arguments.out / "target")
    else:
        train(arguments.out)
    log.info("done in %.0f s", time.monotonic() - began)


def train(out: Path) -> None:
    """All steps in order: writes target/, drafter/ and prompts.jsonl to `out`, and logs the quality of both models."""
    items = build_corpus()
    encoder = Encoder(train_tokenizer(_texts(items)), image_processor())
    examples = [encoder.text(item) for item in items]
    log.info("%d items, %d tokens", len(items), sum(len(example.tokens) for example in examples))
    out.mkdir(parents=True, exist_ok=True)
    write_prompts(items, encoder.tokenizer, out / "prompts.jsonl")

    config = target_config(encoder.tokenizer)
    target = train_target(config, encoder, examples, TargetTraining(), settings.SEED)
    export_target(target, encoder.tokenizer, encoder.processor, out / "target")

    drafter_training = DrafterTraining()
    rng = random.Random(settings.SEED + 1)  # noqa: S311 - nothing secret
    images = encoder.random_images(drafter_training.image_examples, rng)
    on_text, on_images = exact_share(target, examples), exact_share(target, images)
    log.info("target: %.4f of the text replies exact, %.4f of the image replies", on_text, on_images)

    mask_token_id = int(encoder.tokenizer.convert_tokens_to_ids(MASK))
    distiller = Distiller(target, mask_token_id)
    text_traces, image_traces = trace(target, examples), trace(target, images)
    drafter = distiller.train(text_traces + image_traces, drafter_training, settings.SEED + 2)
    text_config = config.text_config
    export_drafter(drafter, text_config.hidden_size, text_config.num_hidden_layers, mask_token_id, out / "drafter")
    log.info(
        "drafter: acceptance length %.2f on text, %.2f on images",
        distiller.acceptance_length(text_traces),
        distiller.acceptance_length(image_traces),
    )
    _train_head(target, examples, images, out / "target")


def train_head_of(directory: Path) -> None:
    """Trains an MTP head for the target in `directory` and adds it to its weights; all others stay as they are."""
    encoder = Encoder(PreTrainedTokenizerFast.from_pretrained(directory), image_processor())
    target = Qwen3_5ForConditionalGeneration.from_pretrained(directory, dtype=torch.bfloat16).eval()
    rng = random.Random(settings.SEED + 1)  # noqa: S311 - nothing secret
    examples = [encoder.text(item) for item in build_corpus()]
    _train_head(target, examples, encoder.random_images(DrafterTraining().image_examples, rng), directory)


def _train_head(
    target: Qwen3_5ForConditionalGeneration, examples: list[Example], images: list[Example], directory: Path
) -> None:
    text_traces, image_traces = trace_for_head(target, examples), trace_for_head(target, images)
    log.info("traced the target for the MTP head")
    trainer = HeadTrainer(target)
    head = trainer.train(text_traces + image_traces, HeadTraining(), settings.SEED + 3)
    export_head(head, directory)
    for name, traces in (("text", text_traces), ("images", image_traces)):
        rates = " ".join(f"{rate:.3f}" for rate in trainer.acceptance_rates(traces))
        log.info("MTP head: acceptance rate by position on %s: %s", name, rates)


def _texts(items: list[Item]) -> list[str]:
    """The texts that the tokenizer is trained on, each as often as it occurs."""
    spoken = [text for item in items for text in (item.messages[-1][1], item.reply)]
    return [*spoken, *QUESTIONS, *ONE_WORD_QUESTIONS]


if __name__ == "__main__":
    main()
