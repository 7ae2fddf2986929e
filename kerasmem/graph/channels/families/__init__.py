"""Channel labelling rules for families of operations."""
