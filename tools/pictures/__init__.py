"""Pictures of the commands for the documents: `make pictures` runs them in a terminal and writes docs/pictures/."""
