"""Which settings of the drafter are fastest on this machine: measure a few, predict the rest, measure the best."""
