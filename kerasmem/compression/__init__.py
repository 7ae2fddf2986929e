"""Model compression: `km.compress` and one package per technique."""
