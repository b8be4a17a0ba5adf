"""What a lossy rule costs: the distance of its tokens' distribution from the target's."""
