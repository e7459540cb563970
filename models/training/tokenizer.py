"""A byte-level BPE tokenizer of 1,024 tokens, trained on the corpus."""

from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from .chat import TEMPLATE
from .settings import MAX_POSITIONS, VOCABULARY_SIZE

END_OF_TEXT = "<|endoftext|>"
END_OF_TURN = "<|im_end|>"
MASK = "<|mask|>"  # the drafter's input at the positions of the draft tokens
IMAGE_PAD = "<|image_pad|>"
VIDEO_PAD = "<|video_pad|>"
VISION_START = "<|vision_start|>"
VISION_END = "<|vision_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, "<|im_start|>", END_OF_TURN, VISION_START, VISION_END, IMAGE_PAD, VIDEO_PAD, MASK)
# Not special: a special token would be dropped from the text that vLLM returns.
THINKING_TOKENS = ("<think>", "</think>")

# Words with the space before them, single digits, runs of punctuation, line ends, runs of spaces.
WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """The trained tokenizer with its chat template, in the format that transformers saves and vLLM loads."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    added = [AddedToken(token, special=True) for token in SPECIAL_TOKENS]
    added += [AddedToken(token, special=False, normalized=False) for token in THINKING_TOKENS]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE - len(added),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens(added)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TURN,
        pad_token=END_OF_TEXT,
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
        chat_template=TEMPLATE,
        extra_special_tokens={
            "image_token": IMAGE_PAD,
            "video_token": VIDEO_PAD,
            "vision_start_token": VISION_START,
            "vision_end_token": VISION_END,
        },
    )
