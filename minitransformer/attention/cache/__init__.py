"""What attention keeps of the tokens that it has seen: their keys and values, all of them, the last ones, or in pages."""
