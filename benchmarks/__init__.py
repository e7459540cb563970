"""Benchmarks of the whole program. They print ratios of medians and assert nothing."""
