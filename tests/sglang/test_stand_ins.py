"""The stand-ins for SGLang's kernels compute what the definitions in transformers do, and the patches fit."""

import importlib
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.parsers.fetch import REPOSITORY, fetched
from tests.support.sglang_cpu import RELEASE, SITE

V_HEADS, SIZE, WIDTH, TOKENS = 4, 16, 4, 9
NEAR = 2e-5  # of float32 sums in another order


@pytest.fixture(scope="module")
def mamba(site: ModuleType) -> Any:
    """The stand-ins of the delta net."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SITE))
        return importlib.import_module("sgl_kernel.mamba")


@pytest.fixture(scope="module")
def reference(transformers: ModuleType) -> Any:
    return importlib.import_module("transformers.models.qwen3_5.modeling_qwen3_5")


def test_every_patch_fits_the_released_source(site: Any) -> None:
    for module, replaced in site.PATCHES.items():
        root = REPOSITORY if module.startswith("dflash_deploy") else fetched(RELEASE)
        text = (root / f"{module.replace('.', '/')}.py").read_text()
        assert [lines for lines in replaced if text.count(lines) != 1] == [], module


def parts(sequences: int, tokens: int, *, heads: int) -> dict[str, torch.Tensor]:
    """Random inputs of the rule."""
    shape = (sequences, tokens)
    return {
        "q": torch.randn(*shape, heads, SIZE),
        "k": torch.randn(*shape, heads, SIZE),
        "v": torch.randn(*shape, V_HEADS, SIZE),
        "g": -torch.rand(*shape, V_HEADS),
        "beta": torch.rand(*shape, V_HEADS),
    }


def by_definition(rule: Any, given: dict[str, torch.Tensor], state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs and states of a function of transformers, whose states have the other order of axes."""
    q, k = (given[name].repeat_interleave(V_HEADS // given[name].shape[2], dim=2) for name in "qk")
    out, last = rule(
        q,
        k,
        given["v"],
        given["g"],
        given["beta"],
        initial_state=state.transpose(-1, -2),
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    return out, last.transpose(-1, -2)


@pytest.mark.parametrize("rule", ["torch_recurrent_gated_delta_rule", "torch_chunk_gated_delta_rule"])
@pytest.mark.parametrize("heads", [1, 2, 4])
def test_the_delta_rule_is_the_one_of_transformers(
    mamba: ModuleType, reference: ModuleType, rule: str, heads: int
) -> None:
    torch.manual_seed(heads)
    given, state = parts(3, TOKENS, heads=heads), torch.randn(3, V_HEADS, SIZE, SIZE)
    expected, last = by_definition(getattr(reference, rule), given, state.clone())
    found = mamba.delta_rule(**given, state=state, keep=lambda *_: None)
    torch.testing.assert_close(found, expected, atol=NEAR, rtol=NEAR)
    torch.testing.assert_close(state, last, atol=NEAR, rtol=NEAR)


def convolution() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(6, WIDTH), torch.randn(5, 6, WIDTH - 1)


def test_the_convolution_is_the_one_of_transformers(mamba: ModuleType, reference: ModuleType) -> None:
    torch.manual_seed(0)
    weight, states = convolution()
    slots, x = torch.tensor([3, 1]), torch.randn(2, 6)
    expected_states = states.clone()
    rows = expected_states[slots]
    expected = reference.causal_conv1d_update(x.unsqueeze(-1), rows, weight, None, "silu").squeeze(-1)
    expected_states[slots] = rows
    found = mamba.causal_conv1d_update_cpu(x, states, weight, None, "silu", conv_state_indices=slots)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(states, expected_states)


def test_a_prompt_is_the_same_in_parts_and_token_by_token(mamba: ModuleType) -> None:
    torch.manual_seed(1)
    weight, states = convolution()
    x = torch.randn(6, TOKENS)

    def prompt(part: torch.Tensor, *, fresh: bool) -> torch.Tensor:
        found: torch.Tensor = mamba.causal_conv1d_fn_cpu(
            part,
            weight,
            activation="silu",
            conv_states=states,
            has_initial_state=torch.tensor([not fresh]),
            cache_indices=torch.tensor([2]),
            query_start_loc=torch.tensor([0, part.shape[1]]),
        )
        return found

    whole = prompt(x, fresh=True)
    after = states.clone()
    in_parts = torch.cat([prompt(x[:, :4], fresh=True), prompt(x[:, 4:], fresh=False)], dim=1)
    torch.testing.assert_close(in_parts, whole)
    torch.testing.assert_close(states, after)
    first = prompt(x[:, :1], fresh=True)
    one = [
        mamba.causal_conv1d_update_cpu(
            x[None, :, n], states, weight, None, "silu", conv_state_indices=torch.tensor([2])
        )
        for n in range(1, TOKENS)
    ]
    torch.testing.assert_close(torch.cat([first, *(token.T for token in one)], dim=1), whole)
    torch.testing.assert_close(states, after)


@pytest.mark.parametrize("accepted", [(1, 4), (3, 2)])
def test_states_after_accepted_drafts_are_those_without_drafts(mamba: ModuleType, accepted: tuple[int, int]) -> None:
    """A step of four tokens, of which some are accepted, leaves what as many steps of one token leave."""
    torch.manual_seed(2)
    weight, conv = convolution()
    ssm, slots = torch.randn(5, V_HEADS, SIZE, SIZE), torch.tensor([4, 2])
    x, a, b = torch.randn(2, 6, 4), torch.randn(8, V_HEADS), torch.randn(8, V_HEADS)
    given = parts(1, 8, heads=2)
    caches = SimpleNamespace(
        temporal=ssm[None].clone(),
        intermediate_ssm=torch.zeros(1, 2, 4, V_HEADS, SIZE, SIZE),
        conv=[conv[None].clone()],
        intermediate_conv_window=[torch.zeros(1, 2, 4, 6, WIDTH - 1)],
    )
    gates = {"A_log": torch.rand(V_HEADS), "dt_bias": torch.rand(V_HEADS)}
    rows = {"intermediate_state_indices": torch.arange(2)}
    mamba.causal_conv1d_update_cpu(
        x, caches.conv[0][0], weight, None, "silu", conv_state_indices=slots,
        intermediate_conv_window=caches.intermediate_conv_window[0][0], **rows,
    )  # fmt: skip
    together = mamba.fused_sigmoid_gating_delta_rule_update_cpu(
        **gates, **{name: given[name] for name in "qkv"}, a=a, b=b, initial_state_source=caches.temporal[0],
        initial_state_indices=slots, cu_seqlens=torch.tensor([0, 4, 8]), disable_state_update=True,
        intermediate_states_buffer=caches.intermediate_ssm[0], **rows,
    )  # fmt: skip
    torch.testing.assert_close(caches.temporal[0], ssm)
    torch.testing.assert_close(caches.conv[0][0], conv)
    mamba.scatter_states_cpu(caches, slots, torch.tensor(accepted) - 1)

    for row, (slot, count) in enumerate(zip(slots, accepted, strict=True)):
        for token in range(count):
            at, one = slice(4 * row + token, 4 * row + token + 1), slot[None]
            mamba.causal_conv1d_update_cpu(x[row, None, :, token], conv, weight, None, "silu", conv_state_indices=one)
            alone = mamba.fused_sigmoid_gating_delta_rule_update_cpu(
                **gates, **{name: given[name][:, at] for name in "qkv"}, a=a[at], b=b[at],
                initial_state_source=ssm, initial_state_indices=one, cu_seqlens=torch.tensor([0, 1]),
            )  # fmt: skip
            torch.testing.assert_close(alone, together[:, at], atol=NEAR, rtol=NEAR)
    torch.testing.assert_close(caches.temporal[0], ssm, atol=NEAR, rtol=NEAR)
    torch.testing.assert_close(caches.conv[0][0], conv)
