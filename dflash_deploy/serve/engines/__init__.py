"""One module per engine: its arguments, how it is launched, and what the rest of the program needs to know about it."""
