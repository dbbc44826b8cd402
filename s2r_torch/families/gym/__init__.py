"""Any Gymnasium environment as a family, and as a live world."""
