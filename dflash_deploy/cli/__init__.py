"""The command line: one module per verb. Nothing else of the package knows Typer or Rich."""
