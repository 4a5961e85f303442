"""What a class of a reader's own does differently, where a second method stands for its `__call__`."""


def keeps_up(kind: type, *methods: str) -> bool:
    """Whether one of these methods, which give what `__call__` gives, is as new as the `__call__` that the class has.

    A subclass with a `__call__` of its own, and the `step` or `value` of its base, would compute one thing when it is trained
    and another when it writes.
    """
    for one in kind.__mro__:
        if any(name in vars(one) for name in methods):
            return True
        if "__call__" in vars(one):
            return False
    return True
