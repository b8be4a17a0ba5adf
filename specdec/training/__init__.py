"""Training of draft heads: features of the target on disk, losses, the loop and its validation."""
