"""Where a dense model runs under autocast, which gives V another dtype than Q and K, it runs sparsified, too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from transformers import DynamicCache

from tests.models.tiny import K, generate, model_of, step_logits, table_of, tokens
from toptheta_npu.models import GrowingCache, sparsify
from toptheta_npu.models.caches.naming import CACHE_ARGUMENT

pytestmark = [
    pytest.mark.usefixtures("no_grad"),
    pytest.mark.filterwarnings("ignore::toptheta_npu.models.NothingSparsifiedWarning"),
]
TEXT = tokens(2, 40, seed=3)


@pytest.fixture(params=[torch.bfloat16, torch.float16], ids=str)
def autocast(request: pytest.FixtureRequest) -> Iterator[None]:
    with torch.autocast("cpu", dtype=request.param):
        yield


@pytest.mark.usefixtures("autocast")
@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax"])
def test_a_cache_that_grows_in_place_gives_what_a_dynamic_cache_gives(placement: str) -> None:
    model, cache = model_of(), GrowingCache()
    with sparsify(model, table_of(placement=placement), k=K):
        assert torch.equal(step_logits(model, TEXT, 25, cache=cache), step_logits(model, TEXT, 25))
        assert torch.equal(generate(model, ids=TEXT), generate(model, ids=TEXT, **{CACHE_ARGUMENT: DynamicCache()}))
    assert cache.layers[0].keys.dtype == cache.layers[0].values.dtype == torch.float32
    assert torch.equal(step_logits(model, TEXT, 25, cache=GrowingCache()), step_logits(model, TEXT, 25))


@pytest.mark.parametrize("first", [True, False])
def test_autocast_may_begin_and_end_while_a_cache_fills(first: bool) -> None:
    logits = []
    for cache in (GrowingCache(), DynamicCache()):
        parts = []
        for begin, end, enabled in ((0, 20, first), (20, 21, not first), (21, 22, first)):
            with sparsify(model_of(), table_of(), k=K), torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                parts.append(model_of()(TEXT[:, begin:end], **{CACHE_ARGUMENT: cache}).logits)
        logits.append(torch.cat(parts, 1))
    assert torch.equal(*logits)


@pytest.mark.usefixtures("autocast")
def test_one_token_without_a_cache_is_itself_its_attention() -> None:
    dense = model_of()(TEXT[:, :1], use_cache=False).logits
    with sparsify(model_of(), table_of(), k=K):
        assert torch.equal(model_of()(TEXT[:, :1], use_cache=False).logits, dense)
