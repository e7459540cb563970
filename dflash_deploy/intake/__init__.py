"""Reads what the program did not write a moment ago: files and texts from outside, bounded in time and memory.

`files` opens and reads, `parse` parses JSON and YAML, `answers` reads HTTP answers. `documents` describes the program's
own JSON files, reads those of `.dflash/`, and sets damaged ones aside.
"""
