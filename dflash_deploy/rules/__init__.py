"""The rules that every plan is checked against: a table of small functions, each named after what it finds.

A rule reads one plan for one machine and returns a finding or `None`. A finding says what was found, why it matters,
what to do, and the source of the fact. `up` refuses a plan with an `error`.
"""
