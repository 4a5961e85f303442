"""What is checked before a public function runs: arrays, parameters, and the gradient that comes back.

A public function (`@checked`, in typing.py) is called from outside, or by another one. Only the outermost call is checked:

    fields       of a dataclass (`@frozen`) have the types and ranges of their hints (ranges.py); checked when it is made
    options      are words and numbers among the arguments; they have the types and ranges of the signature
    arrays       are NumPy's own, in this machine's byte order, also within trees; named tuples have one where their class says so
    parameters   of a layer are a tree of the form that its `init` makes, in one dtype
    heads        of a core are queries, keys, values and streams that fit each other
    indices      (tokens, targets, masks, labels, owners, patterns) are copied, so that nobody changes them between the passes
    states       are of the kind that this layer leaves
    Y            comes back read-only, because its pullback may read it again; so do all parts of a Y that has several
    dY           has the shape of Y, and is cast to its dtype before the pullback gets it; likewise each part

So compiled loops, which check no index, only get arrays that they were made for.

choices.py     options, and fields of dataclasses
arrays.py      arrays, and copies of indices
forms.py       trees that have the form of another one: parameters, gradients of parameters
arguments.py   all that a signature says of the arguments of a call; heads
values.py      Y and dY
states.py      states
"""

from minitransformer.checks.arguments import asked_of, examine
from minitransformer.checks.arrays import own_indices
from minitransformer.checks.choices import choose, fits, frozen, refuse_dtype, refuse_init
from minitransformer.checks.forms import beside, fit, form_of, refuse_other_numbers
from minitransformer.checks.states import left, made_by_hand, same_kind, unmarked
from minitransformer.checks.values import must_be_pair, out

__all__ = [
    "asked_of",
    "beside",
    "choose",
    "examine",
    "fit",
    "fits",
    "form_of",
    "frozen",
    "left",
    "made_by_hand",
    "must_be_pair",
    "out",
    "own_indices",
    "refuse_dtype",
    "refuse_init",
    "refuse_other_numbers",
    "same_kind",
    "unmarked",
]
