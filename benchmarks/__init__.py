"""Benchmarks of the whole tool. They print ratios of medians and assert nothing."""
