"""A drafter for specdec in a package of its own."""
