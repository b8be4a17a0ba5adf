"""Engines of others, one module each, imported only where they are asked for."""
