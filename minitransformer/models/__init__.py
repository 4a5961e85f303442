"""Whole models: blocks, stacks, the language model, the encoder–decoder, a real BERT."""

from minitransformer.models.bert import BERT, BertParams, sentence_embeddings
from minitransformer.models.bert_files import BertMissing, WordPiece, load_bert
from minitransformer.models.block import Block, BlockParams
from minitransformer.models.encoder_decoder import EncoderDecoder, EncoderDecoderParams
from minitransformer.models.feed_forward import FeedForward, FeedForwardParams
from minitransformer.models.generate import generate, next_token_distribution
from minitransformer.models.language_model import LanguageModel, LanguageModelParams
from minitransformer.models.norms import Norm, NormParams
from minitransformer.models.reader import Reader, ReaderParams
from minitransformer.models.stack import Stack, StackParams

__all__ = [
    "BERT",
    "BertMissing",
    "BertParams",
    "Block",
    "BlockParams",
    "EncoderDecoder",
    "EncoderDecoderParams",
    "FeedForward",
    "FeedForwardParams",
    "LanguageModel",
    "LanguageModelParams",
    "Norm",
    "NormParams",
    "Reader",
    "ReaderParams",
    "Stack",
    "StackParams",
    "WordPiece",
    "generate",
    "load_bert",
    "next_token_distribution",
    "sentence_embeddings",
]
