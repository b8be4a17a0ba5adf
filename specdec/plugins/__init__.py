"""Where parts come from: hooks, the registry, and the parts that ship."""
