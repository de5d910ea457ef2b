"""A question after a long text, in the form of a chat."""

from __future__ import annotations

from pathlib import Path
from typing import Any

QUESTION = "What is the capital of France? Answer in one sentence."


def long_question(tokenizer: Any, text: Path, tokens: int) -> list[dict[str, str]]:
    """A chat whose first message is of about so many tokens."""
    before = tokenizer.decode(tokenizer(text.read_text(), truncation=True, max_length=tokens).input_ids)
    return [
        {"role": "user", "content": f"Here is some text about Python.\n\n{before}"},
        {"role": "assistant", "content": "Thank you. I have read it. What would you like to know?"},
        {"role": "user", "content": QUESTION},
    ]


def as_ids(tokenizer: Any, chat: list[dict[str, str]]) -> list[int]:
    """The tokens before the answer."""
    prompt = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    return list(tokenizer(prompt).input_ids)
