"""Part I: where am I? Position encodings, one file for each kind."""

from minitransformer.positions.absolute import LearnedPositions, SinusoidalPositions, sinusoids

__all__ = ["LearnedPositions", "SinusoidalPositions", "sinusoids"]
