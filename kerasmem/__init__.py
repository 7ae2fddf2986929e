"""kerasmem."""
