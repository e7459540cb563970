"""Commands that are killed: at each of their effects on the disk, or at random moments."""
