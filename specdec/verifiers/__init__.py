"""What accepts drafts: one rule a module."""
