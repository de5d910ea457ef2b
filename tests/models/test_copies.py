"""Copies that are made within a context have nothing of it: they are the model as it was before."""

from __future__ import annotations

import copy
import gc
import io
import json
import pickle
import weakref

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from tests.models.test_contexts import sparse_step, traces
from tests.models.tiny import K, new_model, table_of, tokens
from toptheta_npu.models import sparsify
from toptheta_npu.models.hook.architecture import attention_modules

pytestmark = pytest.mark.usefixtures("no_grad")


def _saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "old pickle": lambda model: pickle.loads(pickle.dumps(model, protocol=1)),
    "torch.save": _saved,
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("how", COPIES)
def test_a_copy_of_the_model_is_dense_and_clean(how):
    model = new_model()
    before, expected = traces(model), sparse_step(model)
    with sparsify(model, table_of(), k=K):
        sparse = sparse_step(model)
        other = COPIES[how](model)
        assert torch.equal(sparse_step(other), expected)
        assert traces(other) == before
        assert torch.equal(sparse_step(model), sparse)
        with sparsify(other, table_of(), k=K):  # the copy may have a context of its own
            assert torch.equal(sparse_step(other), sparse)
    assert traces(model) == before
    assert torch.equal(sparse_step(other), expected)


def test_a_pickle_needs_nothing_of_this_package():
    model = new_model()
    with sparsify(model, table_of(), k=K):
        sparse_step(model)
        pickled = pickle.dumps(model)
    assert b"toptheta" not in pickled.lower()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_of_a_module_is_clean(copied):
    model = new_model()
    with sparsify(model, table_of(), k=K):
        sparse_step(model)
        inside = attention_modules(model)[0]
        module = copied(inside)
        assert type(module) is not type(inside)
    assert type(module) is type(attention_modules(model)[0])
    assert module.__dict__.keys() == attention_modules(model)[0].__dict__.keys()


def test_copies_of_the_configuration_name_the_original_attention():
    model = new_model()
    with sparsify(model, table_of(), k=K):
        sparse_step(model)
        for copied in (copy.deepcopy(model.config), pickle.loads(pickle.dumps(model.config))):
            assert copied._attn_implementation == "sdpa"
            assert torch.isfinite(sparse_step(LlamaForCausalLM(copied).eval())).all()
        assert "toptheta" not in json.dumps(model.config.to_dict())


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


def test_hooks_of_the_user_are_copied_as_ever():
    model, seen = new_model(), []
    attention_modules(model)[1].register_forward_pre_hook(_note(seen))
    with sparsify(model, table_of(), k=K):
        handle = attention_modules(model)[0].register_forward_hook(_note(seen))
        other = copy.deepcopy(model)
        model(tokens(1, 4))
        assert len(seen) == 2
        handle.remove()
        model(tokens(1, 4))
        assert len(seen) == 3
        sparse_step(model)
        seen.clear()
    other(tokens(1, 4))
    assert len(seen) == 2
    model(tokens(1, 4))
    assert len(seen) == 3
    assert [len(module._forward_pre_hooks) for module in attention_modules(other)] == [0, 1]


def _note(seen):
    return lambda *arguments: seen.append(1)
