"""The runtime proof: trees, caches and features of a real target against plain forwards."""
