"""The JSON Schema of every document that a command prints with `--json`. No other command imports it."""
