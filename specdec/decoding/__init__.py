"""The decode loop: requests, batches, drafting, stopping, and text."""
