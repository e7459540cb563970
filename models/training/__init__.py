"""Trains the tiny target and its DFlash drafter from random weights: `python -m models.training --out models/tiny`.

Training takes a quarter of an hour on two CPU cores, and vLLM serves the result. The target is a Qwen3.5 (gated delta
net and full attention, with a vision tower); the drafter is a DFlash block-diffusion model. Both know only the corpus
in `texts/`. The steps in order, one module each:

    texts/ -> corpus -> chat, tokenizer -> encoding -> target -> features -> drafter, distil -> export, prompts
"""
