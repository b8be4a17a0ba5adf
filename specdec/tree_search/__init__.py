"""Tree shapes found for a drafter and a machine, and what they are predicted to gain."""
