"""Loads ModelOpt checkpoints with `quant_algo: NVFP4_AWQ` in stock vLLM, which rejects them by itself (up to 0.33).

The format, as ModelOpt 0.47 writes it (torch/quantization/qtensor/nvfp4_tensor.py, torch/export/quant_utils.py), for a
linear layer of `out` rows and `in` columns:

- `weight`, uint8 (out, in / 2): two E2M1 numbers in a byte, the even column in the low four bits;
- `weight_scale`, float8_e4m3fn (out, in / 16): one scale for 16 columns;
- `weight_scale_2`, float32 scalar: one scale for the tensor;
- `input_scale`, float32 scalar: the same for the activation, for kernels that multiply in four bits;
- `pre_quant_scale`, bfloat16 (in,): the activation is multiplied by it. Missing if the export has folded it into the
  layer before, as it does for `o_proj` and `down_proj`, or into a norm.

All but the last is NVFP4, which vLLM loads. vLLM calls `plugin`, which imports vLLM only for such a
checkpoint. `config`, `method` and `reference` import vLLM and torch; nothing else may import them.
"""
