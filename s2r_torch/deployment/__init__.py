"""REALITY: look at a world that shows no reward, then act (Algorithm 7); policies in files."""
