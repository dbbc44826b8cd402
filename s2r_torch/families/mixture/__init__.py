"""MixROMDP (theory.md 5.2): a family of which everything is known, and its finite class that holds f*."""
