"""Part II, attention in linear time: weights that are products of features, which features, and any similarity at all."""

from minitransformer.attention.linear.cosformer import CosFormer, cosformer_attention, cosformer_features
from minitransformer.attention.linear.dpfp import DPFP, dpfp_features, sum_normalised
from minitransformer.attention.linear.performer import Performer, PerformerParams, performer_attention
from minitransformer.attention.linear.random_features import (
    gaussian_rows,
    of_same_length,
    orthogonal_rows,
    positive_features,
    relu_features,
    trigonometric_features,
)
from minitransformer.attention.linear.smoother import Smoother, exponential, gaussian, kernel_smoother, polynomial
from minitransformer.attention.linear.taylor import Taylor, taylor_features

__all__ = [
    "DPFP",
    "CosFormer",
    "Performer",
    "PerformerParams",
    "Smoother",
    "Taylor",
    "cosformer_attention",
    "cosformer_features",
    "dpfp_features",
    "exponential",
    "gaussian",
    "gaussian_rows",
    "kernel_smoother",
    "of_same_length",
    "orthogonal_rows",
    "performer_attention",
    "polynomial",
    "positive_features",
    "relu_features",
    "sum_normalised",
    "taylor_features",
    "trigonometric_features",
]
