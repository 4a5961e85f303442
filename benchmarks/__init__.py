"""How fast the cores are beside those of PyTorch: outside the package, with an environment of its own for the peers."""
