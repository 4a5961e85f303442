"""Measurements and tables, one file each. Nothing is trained in them, and most are used by a single chapter."""
