"""The harness that asks the engines' parsers, itself tested: it accepts what is right and can refuse."""
