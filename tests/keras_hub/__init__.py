"""Models of KerasHub, from their configs, of some thousand weights."""
