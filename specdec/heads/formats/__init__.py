"""Published layouts of draft heads, read and written."""
