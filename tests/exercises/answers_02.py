"""Answers to the exercises of chapter 02."""

ANSWERS = {
    "2.1": {
        "right": [4 / 11, 1 / 11, 2 / 11, 4 / 11],
        "wrong": [[4 / 7, 1 / 7, 2 / 7, 4 / 7], [4 / 7, 1 / 7, 2 / 7], [4, 1, 2, 4], "4/11"],
    },
}
