"""Demo of monitoring, compression and distillation on included images."""
