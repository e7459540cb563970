"""The command line: one module per command. Nothing else of the package knows Typer or Rich."""
