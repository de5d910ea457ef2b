"""Continue a text with the KV cache spread over processes, and compare with one process that holds all of it.

torchrun --standalone --nproc-per-node 2 examples/context_parallel.py
"""

import torch
import torch.distributed as dist

from toptheta_npu.assets import load_tiny_llama, load_tiny_llama_thresholds
from toptheta_npu.models import ContextParallelCache, sparsify

TEXT = "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of "


def main() -> None:
    """Run in every rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model, tokenizer = load_tiny_llama()
    prompt = tokenizer(TEXT * 12, return_tensors="pt")
    options = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False}
    with sparsify(model, load_tiny_llama_thresholds("pre_softmax"), k=64):
        whole = model.generate(**prompt, **options)
        cache = ContextParallelCache(model.config, interleave=32)
        spread = model.generate(**prompt, **options, past_key_values=cache)
    if not torch.equal(spread, whole):
        raise SystemExit(f"rank {dist.get_rank()}: other tokens than one process has")
    held, length = cache.layers[-1].keys.shape[2], cache.get_seq_length()
    print(f"rank {dist.get_rank()} held {held} of {length} keys and continued: {tokenizer.decode(spread[0, -12:])!r}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
