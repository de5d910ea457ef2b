"""Several new tokens on a filled cache: each is the decode step it would be alone, and rejected ones leave no trace."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from tests.models.tiny import (
    CACHES,
    LOOKUP,
    PROMPT,
    K,
    drafting,
    generate,
    left_padded,
    model_of,
    new_cache,
    new_model,
    step_logits,
    table_of,
    tokens,
)  # fmt: skip
from toptheta_npu import TopThetaTypeError, TopThetaValueError
from toptheta_npu.models import (
    DenseDraftsWarning,
    Int8Cache,
    calibrate_cache_scales,
    calibrate_discarded_mass,
    sparsify,
)
from toptheta_npu.models.caches.naming import CACHE_ARGUMENT

pytestmark = pytest.mark.usefixtures("no_grad")

#: A text that repeats itself, so that prompt lookup has drafts.
REPEATED = PROMPT[:, :10].repeat(1, 2)
COMPENSATIONS = [("none", False), ("exact", False), ("exact", True), ("exp_threshold", True), ("offline", True)]


def drafts(how: str) -> dict:
    """What makes ``generate`` draft: with drafts that are accepted, rejected, or now one and now the other."""
    if how == "prompt lookup":
        return dict(LOOKUP)
    return {"assistant_model": drafting(new_model(seed=5 if how == "assistant" else 0))}


def pieces(model, ids: Tensor, cache, first: int, sizes, **options) -> Tensor:
    """Logits of a prompt's last row, and of the pieces that follow it, each in a call of its own."""
    parts = [model(ids[:, :first], **{CACHE_ARGUMENT: cache}, **options).logits[:, -1:]]
    for size in sizes:
        parts.append(model(ids[:, first : first + size], **{CACHE_ARGUMENT: cache}, **options).logits)
        first += size
    return torch.cat(parts, 1)


@contextmanager
def counting_calls(model, calls: list[int]) -> Iterator[None]:
    """Puts the new tokens of each call of the model into ``calls``."""
    hook = model.register_forward_pre_hook(
        lambda module, args, kwargs: calls.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    try:
        yield
    finally:
        hook.remove()


@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax"])
@pytest.mark.parametrize("cache", CACHES)
def test_a_call_of_several_tokens_gives_the_logits_of_as_many_steps(placement, cache):
    model, table, ids = model_of(), table_of(placement=placement), tokens(2, 40, seed=3)
    with sparsify(model, table, k=K):
        alone = step_logits(model, ids, 20, cache=new_cache(cache))
        together = pieces(model, ids, new_cache(cache), 20, (4, 1, 8, 2, 5))
    torch.testing.assert_close(together, alone, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("sdc", "vmc"), COMPENSATIONS)
def test_compensations_are_those_of_single_steps(sdc, vmc):
    model, table, ids = model_of(), table_of(), tokens(2, 40, seed=3)
    if sdc == "offline":
        table = calibrate_discarded_mass(model, table, tokens(6, 80, seed=1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of sdc without vmc
        with sparsify(model, table, k=K, sdc=sdc, vmc=vmc):
            alone = step_logits(model, ids, 20)
            together = pieces(model, ids, DynamicCache(), 20, (4, 8, 8))
    torch.testing.assert_close(together, alone, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("tokens_at_once", [2, 8, 9, 16])
@pytest.mark.parametrize("verify_tokens", [1, 2, 8, 16])
def test_calls_of_more_tokens_are_dense(verify_tokens, tokens_at_once):
    model, ids = model_of(), tokens(2, 40, seed=3)
    dense = pieces(model, ids, DynamicCache(), 20, [tokens_at_once])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that nothing was sparsified
        with sparsify(model, table_of(), k=K, verify_tokens=verify_tokens):
            found = pieces(model, ids, DynamicCache(), 20, [tokens_at_once])
    assert torch.equal(found, dense) == (tokens_at_once > verify_tokens)


def test_a_prompt_that_begins_within_the_call_is_a_prompt():
    """In a batch with padding on the left, fed in pieces."""
    model = model_of()
    batch = left_padded([tokens(1, 30, seed=1), tokens(1, 6, seed=2)])
    ids, mask = batch["input_ids"], batch["attention_mask"]

    def second_piece() -> Tensor:
        cache = DynamicCache()
        model(ids[:, :22], attention_mask=mask[:, :22], **{CACHE_ARGUMENT: cache})
        return model(ids[:, 22:], attention_mask=mask, **{CACHE_ARGUMENT: cache}).logits

    dense = second_piece()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that nothing was sparsified
        with sparsify(model, table_of(), k=K):
            assert torch.equal(second_piece(), dense)


@pytest.mark.parametrize("kind", CACHES)
def test_padding_on_either_side_of_a_few_tokens(kind):
    """Two sequences of other lengths go on with one token and with four."""
    model, texts = model_of(), [tokens(1, length, seed=length) for length in (21, 14)]
    prompts = left_padded([texts[0][:, :20], texts[1][:, :10]])
    new = torch.ones(2, 4, dtype=torch.long)
    new[0, :1], new[1] = texts[0][:, 20:], texts[1][:, 10:]
    mask = torch.cat([prompts["attention_mask"], torch.tensor([[1, 0, 0, 0], [1, 1, 1, 1]])], 1)
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    with sparsify(model, table_of(), k=K):
        cache = new_cache(kind)
        model(**prompts, position_ids=positions[:, :20], **{CACHE_ARGUMENT: cache})
        together = model(new, attention_mask=mask, position_ids=positions[:, 20:], **{CACHE_ARGUMENT: cache}).logits
        alone = [step_logits(model, text, length)[:, 1:] for text, length in zip(texts, (20, 10), strict=True)]
    torch.testing.assert_close(together[:1, :1], alone[0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(together[1:], alone[1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("prefill", ["dense", "thresholded"])
@pytest.mark.parametrize("how", ["assistant", "accepted", "prompt lookup"])
def test_speculative_decoding_gives_the_tokens_of_greedy_decoding(how, prefill):
    model, table = model_of(), table_of()
    with sparsify(model, table, k=K, prefill=prefill):
        greedy = generate(model, ids=REPEATED)
        speculative = generate(model, ids=REPEATED, **drafts(how))
    assert torch.equal(greedy, speculative)


@pytest.mark.parametrize("how", ["assistant", "accepted", "prompt lookup"])
def test_drafts_never_come_in_the_call_of_the_prompt(how):
    """There they would be dense as it is, or by thresholds where a single token would not be."""
    model, calls = model_of(), []
    with counting_calls(model, calls), sparsify(model, table_of(), k=K):
        generate(model, ids=REPEATED, **drafts(how))
    assert calls[0] == REPEATED.shape[1]
    assert max(calls[1:]) > 1


@pytest.mark.parametrize("how", ["assistant", "accepted", "prompt lookup"])
def test_drafts_that_are_too_many_for_thresholds_are_warned_about(how):
    model, calls = model_of(), []
    warned = pytest.warns(DenseDraftsWarning, match=r"^up to \d+ tokens .*thresholded")
    with counting_calls(model, calls), warned as caught, sparsify(model, table_of(), k=K, verify_tokens=1):
        generate(model, ids=REPEATED, **drafts(how))
    mine = [warning for warning in caught if warning.category is DenseDraftsWarning]
    assert [warning.filename for warning in mine] == [__file__]
    assert str(mine[0].message).startswith(f"up to {max(calls[1:])} tokens")
    for choice in ({"prefill": "thresholded", "verify_tokens": 1}, {}):
        with warnings.catch_warnings(), sparsify(model, table_of(), k=K, **choice):
            warnings.simplefilter("error", DenseDraftsWarning)
            generate(model, ids=REPEATED, **drafts(how))


@pytest.mark.parametrize("scales", ["token", "channel"])
@pytest.mark.parametrize("how", ["assistant", "prompt lookup"])
def test_an_int8_cache_verifies_its_numbers_as_they_lie(monkeypatch, scales, how):
    model, table, expected = model_of(), table_of(), []
    if scales == "channel":
        table = calibrate_cache_scales(model, table, tokens(4, 60, seed=1))

    def cache() -> Int8Cache:
        return Int8Cache(model.config, table=table if scales == "channel" else None)

    with sparsify(model, table, k=K):
        expected = generate(model, ids=REPEATED, **{CACHE_ARGUMENT: cache()})
        monkeypatch.setattr("toptheta_npu.models.caches.int8.dequantise", only_prompts)
        found = generate(model, ids=REPEATED, **{CACHE_ARGUMENT: cache()}, **drafts(how))
    assert torch.equal(found, expected)


def only_prompts(numbers: Tensor, scale: Tensor) -> Tensor:
    assert numbers.shape[2] == REPEATED.shape[1], "a step multiplied the cache out"
    return numbers.float() * scale


@pytest.mark.parametrize(
    ("value", "error"), [(0, TopThetaValueError), (17, TopThetaValueError), (True, TopThetaTypeError)]
)
def test_verify_tokens_is_checked(value, error):
    with (
        pytest.raises(error, match="verify_tokens: expected an int"),
        sparsify(model_of(), table_of(), k=K, verify_tokens=value),
    ):
        pass
