"""Optional features that few users need, a folder or a module each.

No layer below imports them. `kerasmem.cli` imports them inside functions. Only
`kerasmem.layers` and `kerasmem.optimizers` import theirs at once, and with them
`kerasmem.registered` and `kerasmem.public`: Keras has to know the registered classes
when it loads a file.
"""
