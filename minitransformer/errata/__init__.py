"""What the five sources print and do not mean: the list, and for each slip that has consequences a function that measures them."""

from minitransformer.errata.listed import Entries, Erratum, entries, load, measure
from minitransformer.errata.reading import Reading, relative_error

__all__ = ["Entries", "Erratum", "Reading", "entries", "load", "measure", "relative_error"]
