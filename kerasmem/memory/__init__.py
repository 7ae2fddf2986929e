"""What memory is used for: of the process, of the activations."""
