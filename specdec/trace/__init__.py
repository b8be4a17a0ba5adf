"""What happened in every step of a generation, written down and shown."""
