"""About a megabyte of text that tokenizers find hard, the same in every run."""

import random
import unicodedata

PROSE = ("the quick brown fox don't jump; it's he'll we've I'm you're they'd CAN'T IT'S over lazy dogs Über façade naïve "
         "Ωmega привет мир שלום مرحبا नमस्ते สวัสดี ﬁne ſpecial K").split()
CJK = "我們在這裡学习机器翻译日本語のテキスト。カタカナ、ひらがな！한국어 텍스트입니다"
EMOJI = ["😀", "👩‍👩‍👧‍👦", "🇩🇪", "👍🏽", "❤️", "🏳️‍🌈", "☃", "𝒳", "🧬"]
CODE = ["for (int i = 0; i < n; ++i) {\n\tx[i] += 1.5e-3f;\n}\n", "def f(self, x: int = 12345) -> str:\n    return f\"{x!r}\"\n",
        "#include <vector>\r\n", "if (a&&b||!c) { return ~0x7fffffff; } // TODO\n\n\n", "<a href='#'>&nbsp;</a>",
        "SELECT * FROM t WHERE a >= 100000;\t\t\n"]
SPACES = [" ", "  ", "   ", "\n", "\n\n", " \n ", "\t", "\r\n", "\u00a0", "\u2003", "\u3000", "\u1680", "\u0085", "\u2028",
          "\u180e", "\u200b", "\ufeff", "      ", "\x0b", "\x0c", "\x1c", "\x1f"]
SPECIAL = ["<|endoftext|>", "<|end|>", " <|end|> ", "<mask>", "  <mask>  ", "<|endof", "café", "cafe\u0301", "<pad>\n\n"]


def documents(size=1_000_000, seed=11):
    """A list of texts of about `size` bytes in UTF-8 together."""
    draw = random.Random(seed)
    texts, total = [], 0
    while total < size:
        text = "".join(piece(draw) for _ in range(draw.choice([1, 3, 30, 400])))
        texts.append(text)
        total += len(text.encode())
    return texts + ["a" * 5000, " " * 3000 + "x", "\n" * 2000, "1234567890" * 200, "é" * 999, "", "\0", "\0a\0"]


def piece(draw):
    kind = draw.randrange(12)
    if kind < 4:
        return " ".join(draw.choices(PROSE, k=draw.randint(1, 12))) + draw.choice([" ", ". ", ", ", "\n", ""])
    if kind == 4:
        return "".join(draw.choices(CJK, k=draw.randint(1, 20)))
    if kind == 5:
        return draw.choice(EMOJI) * draw.randint(1, 3)
    if kind == 6:
        return draw.choice(CODE)
    if kind == 7:
        return "".join(draw.choices(SPACES, k=draw.randint(1, 4)))
    if kind == 8:
        return str(draw.randrange(10 ** draw.randint(1, 12))) + draw.choice(["", "%", "²", "Ⅻ", "٣", ".5"])
    if kind == 9:
        return draw.choice(SPECIAL)
    if kind == 10:
        return unicodedata.normalize(draw.choice(["NFD", "NFC"]), draw.choice(["Ångström", "ﬃ①", "각각", "ệ", "Å", "क़"]))
    return any_characters(draw)


def any_characters(draw):
    """Control characters and assigned characters from all over Unicode, old enough for every library to know them."""
    text = "".join(chr(draw.choice([draw.randrange(32), 127, draw.randrange(128, 0x800), draw.randrange(0x800, 0x3000),
                                    draw.randrange(0x1d400, 0x1d7ff), draw.randrange(0x20000, 0x20100)]))
                   for _ in range(draw.randint(1, 6)))
    return "".join(c for c in text if unicodedata.category(c) not in ("Cn", "Cs"))
