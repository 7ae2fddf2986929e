"""XLA programs and their memory plans, parsed from HLO."""
