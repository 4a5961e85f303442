"""What eleven models reach in the Long Range Arena (Tay et al. 2021a): chapter 20 sets its own small models beside it.

As the README of google-research/long-range-arena prints it at commit faf9b61 of September 2022, for models that were trained on
the task alone. A sixth task, Path-X of 16,384 tokens, is left out: all eleven failed in it.
"""

TASKS = ("ListOps", "text", "retrieval", "image", "path")
ARENA = {  # by the name in the registry: per cent of right answers in each task
    "local": (15.82, 52.98, 53.39, 41.46, 66.63),
    "linear": (16.13, 65.90, 53.09, 42.34, 75.30),
    "reformer": (37.27, 56.10, 53.40, 38.07, 68.50),
    "fixed": (17.07, 63.58, 59.59, 44.24, 71.71),
    "sinkhorn": (33.67, 61.20, 53.83, 41.23, 67.45),
    "linformer": (35.70, 53.94, 52.27, 38.56, 76.34),
    "performer": (18.01, 65.40, 53.82, 42.77, 77.05),
    "synthesizer": (36.99, 61.68, 54.67, 41.61, 69.45),
    "longformer": (35.63, 62.85, 56.89, 42.22, 69.71),
    "softmax": (36.37, 64.27, 57.46, 42.44, 71.40),
    "bigbird": (36.05, 64.02, 59.29, 40.83, 74.87),
}
MEANS = (46.06, 50.55, 50.67, 51.24, 51.29, 51.36, 51.41, 52.88, 53.46, 54.39, 55.01)
PRINTED = dict(zip(ARENA, MEANS, strict=True))  # the mean of the five, as it stands there
