"""Episodes that were logged: what they are, and the files they come in."""
