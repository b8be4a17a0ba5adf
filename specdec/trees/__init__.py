"""Draft trees: the data of a step, shapes by rank, and the files that name shapes."""
