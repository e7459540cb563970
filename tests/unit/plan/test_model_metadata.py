"""What models say of themselves: config.json and a GGUF's header come to the same."""

from hypothesis import given
from hypothesis import strategies as st

from dflash_deploy.plan.model_metadata import ModelMetadata, metadata_of

CONFIG = {
    "architectures": ["DFlashDraftModel"],
    "hidden_size": 5120,
    "num_hidden_layers": 5,
    "vocab_size": 248320,
    "max_position_embeddings": 262144,
    "block_size": 16,
    "rope_theta": 10000000,
    "dflash_config": {"mask_token_id": 248070, "target_layer_ids": [1, 16, 31, 46, 61]},
}
NUMBERS = {"embedding_length": 5120, "block_count": 5, "context_length": 262144, "rope.freq_base": 1e7}
# RedHatAI/Qwen3-8B-speculator.dflash, as NVIDIA-NeMo/RL's tests have it
SPECULATORS = {
    "architectures": ["DFlashDraftModel"],
    "aux_hidden_state_layer_ids": [2, 10, 18, 26, 34],
    "block_size": 8,
    "draft_vocab_size": 32000,
    "speculators_model_type": "dflash",
    "transformer_layer_config": {
        "model_type": "qwen3",
        "num_hidden_layers": 5,
        "hidden_size": 4096,
        "max_position_embeddings": 40960,
        "rope_theta": 1000000,
        "vocab_size": 151936,
    },
}
UPSTREAM = {"block_size": 16, "target_layers": (2, 17, 32, 47, 62)}
FORK = {"dflash.block_size": 16, "dflash.target_layer_ids": (1, 16, 31, 46, 61)}


def header(architecture: str, own: dict[str, object]) -> dict[str, object]:
    keys = {f"{architecture}.{name}": value for name, value in {**NUMBERS, **own}.items()}
    return {"general.architecture": architecture, "tokenizer.ggml.tokens.length": 248320, **keys}


def numbers(node: dict[str, object]) -> tuple[object, ...]:
    found = metadata_of(node)
    return (
        found.hidden_size,
        found.layers,
        found.vocabulary,
        found.context,
        found.deepest_layer,
        found.block_size,
        found.rope_theta,
        found.scaled_positions,
    )


def test_one_drafter_in_three_forms_says_the_same() -> None:
    expected = (5120, 5, 248320, 262144, 61, 16, 1e7, False)
    assert numbers(CONFIG) == expected
    assert numbers(header("dflash", dict(UPSTREAM))) == expected
    assert numbers(header("dflash-draft", dict(FORK))) == expected


def test_a_vision_model_states_its_language_model_within() -> None:
    rope = {"rope_type": "default", "rope_theta": 1e7, "mrope_section": [11, 11, 10]}
    found = metadata_of(
        {"architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": {"rope_parameters": rope}}
    )
    assert (found.architecture, found.rope_theta, found.scaled_positions) == (
        "Qwen3_5ForConditionalGeneration",
        1e7,
        False,
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(sorted(CONFIG)), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from([*CONFIG, "text_config", "rope_parameters", "general.architecture", "dflash.target_layers"])


@given(st.dictionaries(NAMES, JSON, max_size=6))
def test_whatever_stands_there_is_understood_or_left_out(node: dict[str, object]) -> None:
    assert isinstance(metadata_of(node), ModelMetadata)


def test_a_drafter_of_the_speculators_library_has_its_layers_in_a_place_of_their_own() -> None:
    # layer 0 is the output of the embedding there, as in llama.cpp
    assert numbers(SPECULATORS) == (4096, 5, 151936, 40960, 33, 8, 1e6, False)
    assert metadata_of(SPECULATORS).architecture == "DFlashDraftModel"
