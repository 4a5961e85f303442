"""The compiled tiers of the cores: what the definitions compute, tile by tile. Imported only by the tier "numba"."""
