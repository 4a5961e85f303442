"""The exercises that end each chapter, and what tells a reader whether an answer is right.

A chapter's exercises are the functions of one file. Each is given what a reader has found, a number, an array or a function
of theirs, tries it on numbers of its own, and says by `NotYet` what to look at again. A hint never holds the answer.
"""

from minitransformer.exercises.check import NotYet, check_exercise, hint_for

__all__ = ["NotYet", "check_exercise", "hint_for"]
