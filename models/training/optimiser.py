"""Muon for the matrices, AdamW for everything else, and one learning-rate curve for both."""

from dataclasses import dataclass

import torch
from torch import nn

from .settings import Schedule


@dataclass(slots=True)
class Optimiser:
    """Steps both optimisers along a schedule: linear warm-up, then linear decay to zero."""

    parameters: list[nn.Parameter]
    parts: list[torch.optim.Optimizer]
    schedule: Schedule
    done: int = 0

    def step(self, loss: torch.Tensor) -> None:
        """Backpropagates `loss` (a scalar) and updates all parameters once."""
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, self.schedule.gradient_clip)
        rate = self.schedule.learning_rate * _rate_factor(self.done, self.schedule)
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = rate
            part.step()
            part.zero_grad(set_to_none=True)
        self.done += 1


def build_optimiser(model: nn.Module, schedule: Schedule) -> Optimiser:
    """Muon for the hidden matrices; AdamW for embeddings, the output head, convolutions, norms and biases."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    matrices = [parameter for name, parameter in named if parameter.ndim == 2 and not _is_table(name)]
    others = [parameter for name, parameter in named if parameter.ndim != 2 or _is_table(name)]
    rate, decay = schedule.learning_rate, schedule.weight_decay
    parts: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices, lr=rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=rate, weight_decay=decay, betas=(0.9, 0.98)),
    ]
    return Optimiser(matrices + others, parts, schedule)


def build_adamw(model: nn.Module, schedule: Schedule) -> Optimiser:
    """AdamW for everything: slower to learn than Muon, whose bfloat16 products are slow on a CPU without AMX."""
    parameters = list(model.parameters())
    part = torch.optim.AdamW(
        parameters, lr=schedule.learning_rate, weight_decay=schedule.weight_decay, betas=(0.9, 0.98)
    )
    return Optimiser(parameters, [part], schedule)


def _is_table(name: str) -> bool:
    """Whether the rows of this matrix belong to tokens or positions rather than to features."""
    return any(part in name for part in ("embed_tokens", "lm_head", "pos_embed"))


def _rate_factor(step: int, schedule: Schedule) -> float:
    warm_up = min(1.0, (step + 1) / schedule.warm_up_steps)
    return warm_up * (1 - step / schedule.steps)
