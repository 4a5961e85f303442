"""May a model use a layer's `step` or `value` in place of its `__call__`? Not if a subclass has changed `__call__` alone."""


def keeps_up(kind: type, *methods: str) -> bool:
    """Whether one of these methods is defined in the same class as `__call__`, or in a subclass of that one.

    The methods are other ways to compute what `__call__` computes. A reader's subclass with a `__call__` of its own, and the
    `step` or `value` of its base, would compute one thing when it is trained and another when it writes.
    """
    for one in kind.__mro__:
        if any(name in vars(one) and not hasattr(vars(one)[name], "inherited") for name in methods):
            return True
        if "__call__" in vars(one):
            return False
    return True
