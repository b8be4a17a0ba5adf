"""Files as people write and read them: YAML, JSON lines, whole writes, paths. No torch."""
