"""The schemas of the last release, and which properties of the present ones no test has seen."""
