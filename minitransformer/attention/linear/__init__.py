"""Part II, linear time: weights that are products of features, the features themselves, and memories that fade."""

from minitransformer.attention.linear.cosformer import CosFormer, cosformer_attention, cosformer_features
from minitransformer.attention.linear.delta_net import DeltaRule
from minitransformer.attention.linear.dpfp import DPFP, dpfp_features, sum_normalised
from minitransformer.attention.linear.forgetting import Forgetting, forgetting_attention
from minitransformer.attention.linear.gated_delta_net import GatedDelta
from minitransformer.attention.linear.gated_delta_rule import gated_delta_rule, gated_delta_step
from minitransformer.attention.linear.gated_linear_attention import (
    decay_mask,
    gated_linear_attention,
    gated_linear_step,
)
from minitransformer.attention.linear.gla import GLA
from minitransformer.attention.linear.performer import Performer, PerformerParams, performer_attention
from minitransformer.attention.linear.random_features import (
    gaussian_rows,
    of_same_length,
    orthogonal_rows,
    positive_features,
    relu_features,
    trigonometric_features,
)
from minitransformer.attention.linear.retnet import RetNet, retention_decays
from minitransformer.attention.linear.short_convolution import short_convolution
from minitransformer.attention.linear.smoother import Smoother, exponential, gaussian, kernel_smoother, polynomial
from minitransformer.attention.linear.ssd import SSD
from minitransformer.attention.linear.taylor import Taylor, taylor_features

__all__ = [
    "DPFP",
    "GLA",
    "SSD",
    "CosFormer",
    "DeltaRule",
    "Forgetting",
    "GatedDelta",
    "Performer",
    "PerformerParams",
    "RetNet",
    "Smoother",
    "Taylor",
    "cosformer_attention",
    "cosformer_features",
    "decay_mask",
    "dpfp_features",
    "exponential",
    "forgetting_attention",
    "gated_delta_rule",
    "gated_delta_step",
    "gated_linear_attention",
    "gated_linear_step",
    "gaussian",
    "gaussian_rows",
    "kernel_smoother",
    "of_same_length",
    "orthogonal_rows",
    "performer_attention",
    "polynomial",
    "positive_features",
    "relu_features",
    "retention_decays",
    "short_convolution",
    "sum_normalised",
    "taylor_features",
    "trigonometric_features",
]
