"""From YAML to a checked, resolved spec."""
