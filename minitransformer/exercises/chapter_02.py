"""Exercises of chapter 02, on self-attention."""

from minitransformer.exercises.check import close, exercise


@exercise("2.1")
def a_fourth_token(answer):
    """Row 1 of the weights, if a fourth token equals the first; four numbers."""
    close(
        answer,
        [4 / 11, 1 / 11, 2 / 11, 4 / 11],
        "The fourth token scores as the first does. What do four weights sum to?",
        0.01,
    )
