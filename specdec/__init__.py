"""specdec."""
