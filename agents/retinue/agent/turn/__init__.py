"""One turn: how it begins, goes on step by step, and ends in a stored state however it ends."""
