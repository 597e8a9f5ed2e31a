"""Which tokens mark the edges of a document: an explicit choice, resolved to ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipelines.tokenization.files import CONFIG, SPECIAL_TOKENS, TokenizerError, TokenizerFiles

AUTO = "auto"


@dataclass(frozen=True)
class Policy:
    """Tokens put before and after each document; by default none.

    Attributes:
        bos, eos: the token as a string; ``"auto"``, the one that the tokenizer names as its own;
            or None, no token.
    """

    bos: str | None = None
    eos: str | None = None

    def __post_init__(self) -> None:
        for name, token in (("bos", self.bos), ("eos", self.eos)):
            if token is not None and (not isinstance(token, str) or not token):
                raise ValueError(f'{name} must be a token, "auto" or None, got {token!r}')


@dataclass(frozen=True)
class Edges:
    """A policy for one tokenizer: tokens and their ids, or None."""

    bos: str | None = None
    eos: str | None = None
    bos_id: int | None = None
    eos_id: int | None = None


@dataclass(frozen=True)
class Additions:
    """Ids that the tokenizer would put around a text by itself; recorded, never used."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


def additions(tokenizer: Any) -> Additions:
    """What the post-processor of a ``tokenizers.Tokenizer`` adds around a single text.

    Raises:
        TokenizerError: it does more than to put ids before and after.
    """
    around_nothing = list(tokenizer.encode("", add_special_tokens=True).ids)
    bare = list(tokenizer.encode("a", add_special_tokens=False).ids)
    around = list(tokenizer.encode("a", add_special_tokens=True).ids)
    for split in range(len(around_nothing) + 1):
        before, after = around_nothing[:split], around_nothing[split:]
        if around == before + bare + after:
            return Additions(tuple(before), tuple(after))
    raise TokenizerError(
        "the tokenizer's post-processor does more than to add ids before and after a text: "
        f"'a' alone gives {bare}, with special tokens {around}, an empty text {around_nothing}"
    )


def resolve(policy: Policy, files: TokenizerFiles, tokenizer: Any, added: Additions) -> Edges:
    """The ids of a policy's tokens.

    Args:
        tokenizer: the ``tokenizers.Tokenizer`` of ``files``.
        added: what it adds by itself; says what ``"auto"`` means where no companion file does.

    Raises:
        TokenizerError: no such token, or "auto" where the tokenizer names none.
    """
    bos = _resolve("bos", policy.bos, added.before, files, tokenizer)
    eos = _resolve("eos", policy.eos, added.after, files, tokenizer)
    return Edges(bos[0], eos[0], bos[1], eos[1])


def _resolve(
    edge: str, token: str | None, added: tuple[int, ...], files: TokenizerFiles, tokenizer: Any
) -> tuple[str | None, int | None]:
    if token is None:
        return None, None
    if token == AUTO:
        token = _own(edge, files)
        if token is None and len(added) == 1:
            token = tokenizer.id_to_token(added[0])
        if token is None:
            raise TokenizerError(
                f'{edge}="auto", but tokenizer {files.reference!r} names no {edge} token; name one '
                f"({_choice(files)}) or leave {edge} out"
            )
    index = tokenizer.token_to_id(token)
    if index is None:
        raise TokenizerError(
            f"{edge} token {token!r} is not in the vocabulary of tokenizer {files.reference!r}; "
            f"it has {_choice(files)}"
        )
    return token, int(index)


def _own(edge: str, files: TokenizerFiles) -> str | None:
    for name in (CONFIG, SPECIAL_TOKENS):
        token = files.companion(name).get(f"{edge}_token")
        if isinstance(token, dict):
            token = token.get("content")
        if isinstance(token, str):
            return token
    return None


def _choice(files: TokenizerFiles) -> str:
    tokens = [token["content"] for token in files.spec.get("added_tokens") or ()]
    if not tokens:
        return "no added tokens"
    more = f" and {len(tokens) - 12} more" if len(tokens) > 12 else ""
    return "the added tokens " + ", ".join(map(repr, tokens[:12])) + more
