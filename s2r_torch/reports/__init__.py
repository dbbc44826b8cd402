"""What a person sees of a run, and of several: text, tables and pictures."""
