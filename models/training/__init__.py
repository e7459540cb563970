"""Trains the tiny pair, a target and its DFlash drafter, from nothing: `python -m models.training --out models/tiny`.

The pair is small enough to be trained on two CPU cores in a quarter of an hour and real enough for vLLM to serve: the
target is a Qwen3.5 (gated delta net and full attention, with a vision tower), the drafter a DFlash block-diffusion
model. It knows the corpus in `texts/` and nothing else. The order of the work, one module each:

    texts/ -> corpus -> chat, tokenizer -> encoding -> target -> features -> drafter, distil -> export, prompts
"""
