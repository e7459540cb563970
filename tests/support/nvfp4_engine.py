"""The real vLLM with one checkpoint, run in an environment of its engine.

    python -m tests.support.nvfp4_engine logits CHECKPOINT TOKENS.json LOGPROBS.json
    python -m tests.support.nvfp4_engine config CHECKPOINT...

The first writes the log-probabilities of the whole vocabulary behind each token. The second prints, for each
checkpoint, what vLLM's configuration makes of it: the method and its class, or the refusal.
"""

import json
import os
import sys
from pathlib import Path


def logits(checkpoint: str, tokens: str, answers: str) -> None:
    """Prefill the prompts, and write what stands behind each of their tokens."""
    from vllm import LLM, SamplingParams

    engine = LLM(
        checkpoint,
        enforce_eager=True,
        enable_prefix_caching=False,
        max_model_len=256,
        max_num_seqs=4,
        max_logprobs=-1,
        limit_mm_per_prompt={"image": 0, "video": 0},
    )
    prompts = [{"prompt_token_ids": prompt} for prompt in json.loads(Path(tokens).read_text())]
    wanted = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=-1, logprobs=-1)
    found = []
    for answer in engine.generate(prompts, wanted):
        # the first token has nothing before it
        positions = [*answer.prompt_logprobs[1:], answer.outputs[0].logprobs[0]]
        found.append([[entry[token].logprob for token in range(len(entry))] for entry in positions])
    Path(answers).write_text(json.dumps(found))
    engine.llm_engine.engine_core.shutdown()
    # with other work on the processor, threads of vLLM sometimes abort the interpreter's end
    sys.stdout.flush()
    os._exit(0)


def config(*checkpoints: str) -> None:
    """Print a JSON list with one answer for each checkpoint."""
    from vllm.engine.arg_utils import EngineArgs

    found = []
    for checkpoint in checkpoints:
        try:
            made = EngineArgs(model=checkpoint, max_model_len=256, enable_prefix_caching=False).create_engine_config()
            found.append([made.model_config.quantization, type(made.quant_config).__name__])
        except ValueError as refusal:
            found.append(["refused", str(refusal)])
    print(json.dumps(found))


if __name__ == "__main__":
    if sys.argv[1] == "logits":
        logits(*sys.argv[2:])
    else:
        config(*sys.argv[2:])
