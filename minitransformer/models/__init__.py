"""Whole models: blocks, stacks, the language model, the encoder–decoder, published architectures and their files."""

from minitransformer.models.bert import BERT, sentence_embeddings
from minitransformer.models.bert_files import BertMissing, WordPiece, load_bert
from minitransformer.models.block import Block, BlockParams
from minitransformer.models.encoder_decoder import EncoderDecoder, EncoderDecoderParams
from minitransformer.models.feed_forward import FeedForward, FeedForwardParams
from minitransformer.models.gated_feed_forward import GatedFeedForward, GatedFeedForwardParams
from minitransformer.models.generate import generate, next_token_distribution
from minitransformer.models.norms import Norm, NormParams
from minitransformer.models.published import deepseek_v2_lite, gpt2, gpt_oss, llama, qwen3_next
from minitransformer.models.published_files import from_safetensors
from minitransformer.models.reversible import ReversibleStack
from minitransformer.models.sequence_model import LanguageModel, SequenceModel, SequenceParams, Written
from minitransformer.models.stack import Stack, StackParams
from minitransformer.models.transformer_xl import MemoryStack
from minitransformer.models.universal import UniversalStack

__all__ = [
    "BERT",
    "BertMissing",
    "Block",
    "BlockParams",
    "EncoderDecoder",
    "EncoderDecoderParams",
    "FeedForward",
    "FeedForwardParams",
    "GatedFeedForward",
    "GatedFeedForwardParams",
    "LanguageModel",
    "MemoryStack",
    "Norm",
    "NormParams",
    "ReversibleStack",
    "SequenceModel",
    "SequenceParams",
    "Stack",
    "StackParams",
    "UniversalStack",
    "WordPiece",
    "Written",
    "deepseek_v2_lite",
    "from_safetensors",
    "generate",
    "gpt2",
    "gpt_oss",
    "llama",
    "load_bert",
    "next_token_distribution",
    "qwen3_next",
    "sentence_embeddings",
]
