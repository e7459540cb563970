"""Pods of exported manifests as containers of this machine's Docker, field by field as the kubelet has it.

`fields` and `spec` read a pod's specification and raise for what they do not know, so that no field is left out without
a word. `node` makes the directories of volumes, `pods` runs pods, probes them and ends them.
"""
