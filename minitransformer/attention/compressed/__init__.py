"""Attention with a smaller matrix: fewer keys, by convolution or by learned sums; landmarks; or no matrix at all."""

from minitransformer.attention.compressed.fnet import FNet, fourier_mix
from minitransformer.attention.compressed.linformer import Linformer, LinformerParams, linformer_attention
from minitransformer.attention.compressed.memory_compressed import (
    MemoryCompressed,
    MemoryCompressedParams,
    compress,
    memory_compressed_attention,
)
from minitransformer.attention.compressed.nystrom import Nystrom, NystromParams, nystrom_attention, pseudo_inverse

__all__ = [
    "FNet",
    "Linformer",
    "LinformerParams",
    "MemoryCompressed",
    "MemoryCompressedParams",
    "Nystrom",
    "NystromParams",
    "compress",
    "fourier_mix",
    "linformer_attention",
    "memory_compressed_attention",
    "nystrom_attention",
    "pseudo_inverse",
]
