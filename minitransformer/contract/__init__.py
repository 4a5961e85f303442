"""What every kind of attention has to keep, rule by rule, and `check_attention`, which holds one against all the rules.

A rule is a function of a core or a mixer. It raises `Broken` with a sentence that says what is wrong, and where. The tests of
the book (tests/attention/test_contract.py) try the same rules on all that is registered, in more lengths and combinations;
`tests/test_contract_rules.py` holds a bank of wrong cores, each of which must be caught.

parts.py        what the rules have in common
values.py       rules for pairs, values and gradients
reach.py        rules for what must reach nothing: later tokens, padding, what is hidden, other samples
in_a_model.py   rules for a model with it: step by step, ten steps of training, saved and loaded
refusals.py     rules for what does not fit
check.py        `check_attention`
"""

from minitransformer.contract.check import AttentionError, check_attention
from minitransformer.contract.in_a_model import (
    PIECES,
    learns,
    one_by_one,
    saved_and_loaded,
    state_continued_twice,
)
from minitransformer.contract.parts import (
    HEADS,
    WIDTH,
    Broken,
    N,
    can,
    directions,
    heads_for,
    mixer,
    padding,
    pattern_of,
    rows,
    some,
)
from minitransformer.contract.reach import (
    hidden_reaches_nothing,
    later_changes_nothing,
    nothing_to_see,
    padding_changes_nothing,
    samples_apart,
)
from minitransformer.contract.refusals import refuses, refuses_other_heads
from minitransformer.contract.values import (
    any_length,
    encodings_act,
    form_is_kept,
    gradients,
    groups_share_keys,
    pairs_are_there,
    tiers_agree,
    values_have_a_width,
)

__all__ = [
    "HEADS",
    "PIECES",
    "WIDTH",
    "AttentionError",
    "Broken",
    "N",
    "any_length",
    "can",
    "check_attention",
    "directions",
    "encodings_act",
    "form_is_kept",
    "gradients",
    "groups_share_keys",
    "heads_for",
    "hidden_reaches_nothing",
    "later_changes_nothing",
    "learns",
    "mixer",
    "nothing_to_see",
    "one_by_one",
    "padding",
    "padding_changes_nothing",
    "pairs_are_there",
    "pattern_of",
    "refuses",
    "refuses_other_heads",
    "rows",
    "samples_apart",
    "saved_and_loaded",
    "some",
    "state_continued_twice",
    "tiers_agree",
    "values_have_a_width",
]
