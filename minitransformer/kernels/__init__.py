"""The loops of the tiers "numba" and "micro": they compute what the definitions do. The tier "numpy" imports none of them."""
