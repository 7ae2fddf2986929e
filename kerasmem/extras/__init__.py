"""Optional features, one folder or module each.

Lower layers do not import them, and `kerasmem.cli` imports them inside functions. Only
`kerasmem.layers` and `kerasmem.optimizers` import their features at once. Keras needs
the registered classes when it loads a file.
"""
