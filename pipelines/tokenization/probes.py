"""Probe texts: small, hard, and the same for ever.

They tell two tokenizers or two engines apart. Their ids are part of a cache's identity, so the
texts are never changed without a new ``EDITION``. They hold no character younger than Unicode 12:
libraries update their tables, and such an update must not look like another tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterable

EDITION = 1

_SCRIPTS = (
    "The quick brown fox jumps over the lazy dog. It's 12:45, isn't it? I'LL SAY: WE'RE DONE.",
    "Größe, façade, naïve, Łódź, İstanbul ıI, ǅungla, ﬁn, ſs, K Å",
    "Příliš žluťoučký kůň úpěl ďábelské ódy; e\u0301 n\u0303 a\u0308\u0323 \u0301x",
    "Съешь ещё этих мягких французских булок, да выпей чаю. ЁЖ, Ўў, ѣ",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. ΐ ΰ ς Σίσυφος",
    "דג סקרן שט בים מאוכזב ולפתע מצא חברה. שָׁלוֹם",
    "نص حكيم له سر قاطع وذو شأن عظيم. ١٢٣٤٥ ۴۵۶ مُحَمَّد لا",
    "ऋषियों को सताने वाले दुष्ट राक्षसों। १२३ क्षत्रिय",
    "আমি কাঁচ খেতে পারি। বাংলা ৪৫৬",
    "யாமறிந்த மொழிகளிலே தமிழ்மொழி போல்",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า ๑๒๓",
    "ကြောင်၊ မြန်မာ။ ខ្មែរ ភាសា ລາວ བོད་ཡིག",
    "ქართული ენა ᲥᲐᲠᲗᲣᲚᲘ Հայերեն լեզու አማርኛ ᏣᎳᎩ ꮳꮃꭹ",
    "天地玄黃,宇宙洪荒。日月盈昃、辰宿列張。2024年3月",
    "いろはにほへと ちりぬるを。カタカナ、ひらがな、漢字ー々〆",
    "키스의 고유조건은 입술끼리 만나야 한다 \u1112\u1161\u11ab",
    "𠮷野家 𐍈 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚𝟛 𐐷 𓀀 𞤀𞤢",
    "½ ² ⅷ ① ㊿ ٣ 𝟘 1,234.5 0x1F 1e-9 123456789 ๓",
    "“quotes” ‘single’ «guillemets» … – — · ‰ № © ® ™ § ¶ † ¿¡",
    "$5 €6 £7 ¥8 ₹9 ∑∫√∞≠≤ → ⇒ ∀x∈ℝ ░▒▓ ┌─┐ ♠♥",
)
_CODE = (
    "def f(x: int) -> str:\n    return f'{x!r:>10}'  # comment\n\n\nclass A(B):\n\tpass\n",
    'for (int i = 0; i < n; ++i) {\n        a[i] ^= 0xFFu << (i & 7); // !=\n}\n\n"\\n\\t\\\\"',
    '<div class="a b">&nbsp;<br/></div><!-- x --><?php echo $a->b["c"]; ?>',
    '{"key": [1, 2.5e-3, null, true], "esc": "\\u00e9\\n"}',
    "SELECT * FROM t WHERE a='x''y' AND b<>3;-- end\r\nGO\r\n",
    "https://example.org/a_b-c/%20?q=1&r=%C3%A9#frag user.name+tag@example.com",
    "$\\frac{a}{b}^{2}_{i,j}$ \\begin{align*}x&=y\\\\\\end{align*}",
    "snake_case camelCase PascalCase HTTPServer2 iPhone15 x86_64 __init__ don't DON'T O'Neil's",
)
_SPACES = (
    "",
    " ",
    "  ",
    "\n",
    "\r\n",
    "\t",
    "a b  c   d    e",
    " leading",
    "trailing ",
    "  two leading",
    "trailing two  ",
    "a\nb\n\nc\n\n\nd\n \ne \n f",
    "a\r\nb\r\n\r\nc\rd\r\r\n",
    "\ta\t\tb \t c\t \td\n\t\n",
    "a\u00a0b\u2003c\u3000d\u200be\u2028f\u2029g\u0085h\u1680i\ufeffj\u202fk",
    "a\vb\fc\x1cd\x1fe \u2028 \u2029 \u0085 ",
    " " * 1000,
    "\n" * 1000,
    "\t" * 300 + "x",
    "x" + " \n" * 300 + "y",
    "if\n" + " " * 257 + "x" + "\n" * 33 + " y",
)
_ODD = (
    "\x00",
    "a\x00b\x00\x00c",
    "".join(map(chr, range(0x20))),
    "".join(map(chr, range(0x20, 0x7F))),
    "".join(map(chr, range(0x7F, 0x180))),
    "\x7f\x80\x9f\xad",
    "\ud7ff \ue000 \uf8ff \ufffd \ufffe \uffff \U0010ffff \U000f0000",
    "\ufeffBOM first",
    "a\u0301\u0302\u0303\u0304\u0305b\u20dd c\u0338 \u0300",
    "e" + "\u0301" * 500,
    "\u200d\u200c\u200e\u200f\u202a\u202e\u2066\u2069",
    "👩‍👩‍👧‍👦 👨🏽‍🚀 🏳️‍🌈 🇩🇪🇫🇷 1️⃣ #️⃣ ☺️☺ ❤️‍🔥 👍🏿 😀😀😀",
    "\u1100\u1161\u11a8 \u3131 \ufb00 \ufb04 \u0149 \u01f0 \u0390 \u1e9e \u2126 \u212a",
    "Ａｂｃ１２３！ ﾊﾝｶｸ ｶﾞ",
    "zͤ̀a̴̧l̷̛g̶o̸ t̵e̴x̷t̸",
    "▁lower▁one ▁ ▁▁ a▁b Ġ Ċ Ġword ĉ âĢĻ",
    "##ing ##a ##1 @@ </w> <0x0A> <0xE4> <unk> <pad>",
)
_LOOK_ALIKES = (
    "<s> </s> <s>a</s> <bos> <eos> <|endoftext|> <|im_start|>user\nhi<|im_end|>",
    "[CLS] [SEP] [PAD] [UNK] [MASK] [INST] hi [/INST] <<SYS>>",
    "<|begin_of_text|><|start_header_id|>x<|end_header_id|><|eot_id|><start_of_turn>",
    "<｜begin▁of▁sentence｜> <｜end▁of▁sentence｜> <|endoftext <|endoftext| |> <| |> ｜>",
    "<think>\nhm\n</think> <tool_call>{}</tool_call> <|fim_prefix|> <|reserved_special_token_0|>",
)
_LONG = (
    "a" * 3000,
    "A" * 257 + "b" * 256 + "C" * 255,
    "ab" * 2000,
    "!" * 1000,
    "-=" * 500,
    "1" * 1000,
    "é" * 1000,
    "漢" * 1000,
    "😀" * 500,
    "_" * 1000 + "x",
    "thequickbrownfoxjumpsoverthelazydog" * 40,
    "donaudampfschifffahrtsgesellschaft" * 3000,  # 100,000 characters without white space
    "lorem ipsum dolor sit amet, " * 300,
)


def probe_texts(special: Iterable[str] = (), vocabulary: Iterable[str] = ()) -> tuple[str, ...]:
    """All probe texts, in an order that does not change.

    Args:
        special: the special added tokens of the tokenizer to probe.
        vocabulary: its other added tokens.
    """
    own = [text for token in special for text in around(token)]
    own += [text for token in vocabulary for text in around(token)]
    return (*_SCRIPTS, *_CODE, *_SPACES, *_ODD, *_LOOK_ALIKES, *_LONG, *own)


def around(token: str) -> tuple[str, ...]:
    """Texts with a token's characters in them: alone, in words, among spaces, doubled, cut."""
    return (
        token,
        f"x{token}y {token} {token}{token}\n{token}\n  {token}  1{token}2",
        f"{token[:-1]} {token[1:]} {token.upper()} {token.lower()}",
    )
