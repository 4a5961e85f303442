"""What the five sources print and do not mean: the list, and a function for each slip that has consequences."""

from minitransformer.errata.listed import Entries, Erratum, entries, load, measure
from minitransformer.errata.reading import Reading, relative_error

__all__ = ["Entries", "Erratum", "Reading", "entries", "load", "measure", "relative_error"]
