"""Copies that are made within a context are dense, as the model was before."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from tests.models.test_contexts import sparse_step, traces
from tests.models.tiny import K, new_model, table_of
from toptheta_npu.models import sparsify

pytestmark = pytest.mark.usefixtures("no_grad")


@pytest.mark.filterwarnings("error")
def test_a_copy_of_the_model_is_dense():
    model = new_model()
    before, expected = traces(model), sparse_step(model)
    with sparsify(model, table_of(), k=K):
        sparse = sparse_step(model)
        other = copy.deepcopy(model)
        assert torch.equal(sparse_step(other), expected)
        assert torch.equal(sparse_step(model), sparse)
        with sparsify(other, table_of(), k=K):  # the copy may have a context of its own
            assert torch.equal(sparse_step(other), sparse)
        assert sparse_step(LlamaForCausalLM(copy.deepcopy(model.config)).eval()).isfinite().all()
    assert traces(model) == before
    assert torch.equal(sparse_step(other), expected)


def test_a_model_saved_in_the_context_loads_as_the_original(tmp_path):
    model = new_model()
    expected = sparse_step(model)
    with sparsify(model, table_of(), k=K):
        sparse_step(model)
        model.save_pretrained(tmp_path)
    assert "toptheta" not in (tmp_path / "config.json").read_text()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert loaded.config._attn_implementation == "sdpa"
    torch.testing.assert_close(sparse_step(loaded), expected)


def test_a_copy_outlives_the_original_and_keeps_nothing_of_it():
    model = new_model()
    with sparsify(model, table_of(), k=K):
        sparse_step(model)
        other = copy.deepcopy(model)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert sparse_step(other).shape == (1, 1, 97)
