"""Trains the tiny target, its MTP head and its DFlash drafter: `python -m models.training --out models/tiny`.

Training takes a quarter of an hour on two CPU cores, and vLLM serves the result. The target is a Qwen3.5 (gated delta
net and full attention, with a vision tower); the drafter is a DFlash block-diffusion model. They know only the corpus
in `texts/`. With `--head-only` only the MTP head is trained, for the target that is there. The steps in order, one
module each:

    texts/ -> corpus -> chat, tokenizer -> encoding -> target -> features -> drafter, distil
    -> mtp_head, mtp_training -> export, prompts
"""
