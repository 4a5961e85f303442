"""Texts and tasks to learn from, and n-grams to compare with."""
