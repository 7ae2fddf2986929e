"""Static int8 quantization of weights and activations, as in LiteRT."""
