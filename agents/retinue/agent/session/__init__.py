"""A conversation as it is kept: its history, the line of those who want to write it, and who does."""
