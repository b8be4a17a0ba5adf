"""Verification rules side by side, on the same drafts of a real model."""
