"""What a compiled step needs, from what XLA is given to compile."""
