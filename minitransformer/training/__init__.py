"""The engine of a training: choices, state, loop, optimiser, schedules, checkpoints."""
