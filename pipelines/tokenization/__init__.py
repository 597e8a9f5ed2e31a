"""Text to token ids: exact, fast, and sure of who the tokenizer is.

The ids of Hugging Face `tokenizers` are what is right. ``prepare`` finds out whether the fast
engine gives the same and where it may not; ``open_encoder`` gives each worker an ``Encoder``.
"""

from pipelines.tokenization.audit import differing
from pipelines.tokenization.code_points import CodePointSet
from pipelines.tokenization.encoder import Encoder
from pipelines.tokenization.files import TokenizerError, TokenizerFiles, load_tokenizer
from pipelines.tokenization.identity import Identity, check_same, differences
from pipelines.tokenization.policy import Additions, Edges, Policy
from pipelines.tokenization.preparation import Prepared, decode, open_encoder, prepare

__all__ = [
    "Additions",
    "CodePointSet",
    "Edges",
    "Encoder",
    "Identity",
    "Policy",
    "Prepared",
    "TokenizerError",
    "TokenizerFiles",
    "check_same",
    "decode",
    "differences",
    "differing",
    "load_tokenizer",
    "open_encoder",
    "prepare",
]
