"""What a stack has to remember while it writes, if some of its layers see a window and others everything.

    layers of gpt-oss     (Window(127), None) · 18          one window, one dense layer, in turns
    5 : 1                 (Window(1023),) · 5 + (None,)     five windows for each dense layer, over and over
    3 : 1, in chunks      (Local(8192),) · 3 + (None,)      chunks that never connect, and a dense layer that connects them

A window keeps the same however long the text is. So with p of them for each dense layer the cache of a long text is nearly p + 1
times smaller.
"""

from collections.abc import Sequence

from minitransformer.attention.sparse.pattern import Pattern
from minitransformer.ranges import NonNegative
from minitransformer.typing import checked


@checked
def cached_tokens(pattern: Pattern | None, n: NonNegative) -> int:
    """How many keys a layer with this pattern keeps after n tokens; all n without a pattern."""
    kept = None if pattern is None else pattern.kept
    return n if kept is None else min(n, kept.first + kept.last)


@checked
def cache_bytes(layers: Sequence[Pattern | None], n: NonNegative, *, groups: int, d: int, each: int = 2) -> int:
    """Bytes of the keys and values of n tokens, in all layers.

        2 · G d · each · Σ_layers min(n, what the layer keeps)

    layers   a pattern for each, None for a dense one
    groups   G, heads of keys and values; d: width of a head
    each     bytes of a number: 2 for bfloat16
    """
    return 2 * groups * d * each * sum(cached_tokens(pattern, n) for pattern in layers)
