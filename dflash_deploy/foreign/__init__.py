"""Commands and files that others published: read without running anything, mapped to settings, and written back."""
