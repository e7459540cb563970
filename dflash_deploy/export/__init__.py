"""A deployment as manifests for Kubernetes: a kustomize folder from its plan and its lock. Rendering only."""
