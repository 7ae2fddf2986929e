"""Optional features that few users need, one folder each; the core imports none."""
