"""The models whose distribution is decoded: one runtime a module."""
