"""`minitransformer train` and `generate`: the two trainings of the book, how good they become, and what is written then."""
