"""What one chapter alone needs, and no model: measurements and tables, one file each."""
