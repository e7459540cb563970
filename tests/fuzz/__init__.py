"""Hostile input for the real readers and commands, counted by class: docs/explanation/hostile-input.md."""
