"""The exact proof: distributions by enumeration of every outcome, on models of a few tokens."""
