"""The KV cache and the tree mask: torch only, shared by targets and drafters."""
