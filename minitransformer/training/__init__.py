"""Optimiser, schedules, loop, checkpoints, and the two commands that use them."""
