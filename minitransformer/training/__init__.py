"""How a model is trained: choices, state, loop, optimiser, schedules, checkpoints."""
