"""Files: written whole or not at all, held by one process; tensors with a JSON header, never executed."""
