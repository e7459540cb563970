"""Settings of the training: seed, vocabulary, image sizes, steps. The modules of the models define their sizes."""

from dataclasses import dataclass

SEED = 20261121
VOCABULARY_SIZE = 1024
BLOCK_SIZE = 8  # length of a drafted block: one verified token and seven masks
TARGET_LAYER_IDS = (1, 3, 6)  # target layers (from 0) whose outputs the drafter reads
MTP_DEPTHS = 3  # number of successive draft tokens that the MTP head is trained on
MAX_POSITIONS = 4096
RMS_NORM_EPS = 1e-6

PATCH_SIZE = 16
MERGE_SIZE = 2
TEMPORAL_PATCH_SIZE = 2
MIN_PIXELS = 1
# One vision token: an image less than four times as long as wide becomes 32 x 32 pixels, a longer strip 32 x 32 n.
#
# If an image has more tokens than positions along it, vLLM 0.32 leaves gaps in the drafter's KV cache: M-RoPE gives
# all tokens of an image the same temporal position, and vLLM computes the drafter's cache entries from that position.
MAX_PIXELS = (PATCH_SIZE * MERGE_SIZE) ** 2


@dataclass(frozen=True, slots=True)
class Schedule:
    """How long and how fast a model is trained."""

    steps: int
    learning_rate: float
    warm_up_steps: int = 30
    weight_decay: float = 0.01
    gradient_clip: float = 1.0


@dataclass(frozen=True, slots=True)
class TargetTraining:
    """The target's training: text batches, with an image batch at regular intervals."""

    schedule: Schedule = Schedule(steps=1300, learning_rate=4e-3)
    tokens_per_batch: int = 1100
    image_batch_every: int = 8
    images_per_batch: int = 8


@dataclass(frozen=True, slots=True)
class DrafterTraining:
    """The drafter's training: blocks at random places of the replies, position k weighted by exp(-(k - 1) / decay)."""

    schedule: Schedule = Schedule(steps=1400, learning_rate=4e-3)
    tokens_per_batch: int = 1100
    blocks_per_batch: int = 320
    weight_decay_length: float = 4.0
    image_examples: int = 240


@dataclass(frozen=True, slots=True)
class HeadTraining:
    """The MTP head's training: whole replies, draft token k weighted by exp(-(k - 1) / decay)."""

    schedule: Schedule = Schedule(steps=400, learning_rate=4e-3)
    tokens_per_batch: int = 1100
    weight_decay_length: float = 4.0
