"""The compiled tiers of the cores, "numba" and "micro": what the definitions compute, tile by tile. They alone import it."""
