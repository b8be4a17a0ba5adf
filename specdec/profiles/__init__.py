"""What was measured: costs of forwards and acceptance of drafts, as files that search and adaptive trees read."""
