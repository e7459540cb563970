"""What serves more than one box, or a guest: each package is a whole slice, with its commands, operations and texts.

The core does not import them (a contract of import-linter). `registry.Feature` says what a package registers.
"""
