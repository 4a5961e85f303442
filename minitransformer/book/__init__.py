"""What runs the book: its notebooks, the comparison of what they give, the map of its equations, a look at the machine."""
