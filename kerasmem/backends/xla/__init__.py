"""What XLA compiles: its programs and the plan of their memory, read from HLO."""
