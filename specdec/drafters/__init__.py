"""What proposes tokens: one method a module."""
