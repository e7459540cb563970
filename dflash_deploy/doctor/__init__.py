"""`doctor`: reports what would prevent a deployment from starting on this machine, and how to fix it."""
