"""What needs no model, and mostly one chapter alone: measurements and tables, one file each."""
