"""Another attention that the user chooses within a context: an error in the next call, and his choice stays."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from transformers import GenerationConfig, LlamaForCausalLM, PreTrainedModel

from tests.models.test_contexts import sparse_step
from tests.models.tiny import K, new_model, table_of, tokens
from toptheta_npu.errors import TopThetaNotImplementedError, TopThetaValueError
from toptheta_npu.evaluation.methods.top_k import select_top_k
from toptheta_npu.models import apply_selection, sparsify

pytestmark = pytest.mark.usefixtures("no_grad")
_MESSAGE = (
    r"^model: expected attention implementation 'toptheta' until the context ends, got '{}'; "
    r"leave the sparsify \(or other Top-Theta\) context before you choose another attention$"
)


def _by_method(model: PreTrainedModel, name: str) -> None:
    model.set_attn_implementation(name)


def _in_the_configuration(model: PreTrainedModel, name: str) -> None:
    model.config._attn_implementation = name


def _for_sub_models(model: PreTrainedModel, name: str) -> None:
    model.set_attn_implementation({"": name})


_CHOICES = [_by_method, _in_the_configuration, _for_sub_models]


@pytest.mark.parametrize("choose", _CHOICES)
@pytest.mark.parametrize("name", ["sdpa", "eager"])
@pytest.mark.parametrize("original", ["sdpa", "eager"])
def test_a_choice_within_a_context_raises_in_the_next_call_and_stays(
    choose: Callable[[PreTrainedModel, str], None], name: str, original: str
) -> None:
    model = new_model()
    model.set_attn_implementation(original)
    with sparsify(model, table_of(), k=K):
        sparse_step(model)
        choose(model, name)
        for call in (lambda: model(tokens(1, 4)), lambda: model.generate(tokens(1, 20), max_new_tokens=3)):
            with pytest.raises(TopThetaValueError, match=_MESSAGE.format(name)):
                call()
    assert model.config._attn_implementation == name
    assert sparse_step(model).isfinite().all()


def test_a_choice_within_a_selection_raises() -> None:
    model = new_model()
    with apply_selection(model, lambda layer: select_top_k(4)):
        model.set_attn_implementation("eager")
        with pytest.raises(TopThetaValueError, match=_MESSAGE.format("eager")):
            model(tokens(1, 4))
    assert model.config._attn_implementation == "eager"


def test_a_choice_that_is_taken_back_changes_nothing() -> None:
    model = new_model()
    with sparsify(model, table_of(), k=K):
        expected = sparse_step(model)
        model.set_attn_implementation("eager")
        model.set_attn_implementation("toptheta")
        assert (sparse_step(model) == expected).all()
    assert model.config._attn_implementation == "sdpa"


def test_a_choice_for_one_of_two_models_with_one_configuration_stays_in_the_end() -> None:
    first = new_model()
    second = LlamaForCausalLM(first.config).eval()
    second.load_state_dict(first.state_dict())
    with sparsify(first, table_of(), k=K):
        expected = sparse_step(first)
        first.set_attn_implementation("eager")
        with sparsify(second, table_of(), k=K):
            assert (sparse_step(second) == expected).all()
        assert (sparse_step(first) == expected).all()
    assert first.config._attn_implementation == "eager"


@pytest.mark.parametrize("paged", [False, True])
def test_continuous_batching_is_refused(paged: bool) -> None:
    model = new_model()
    options = GenerationConfig(max_new_tokens=2, do_sample=False, eos_token_id=-1, pad_token_id=0)
    named = r"^model: expected a call of generate\(\), got continuous batching .*; pad the prompts on the left"

    def generate() -> None:
        if paged:
            model.generate(tokens(1, 20), generation_config=options, cache_implementation="paged")
        else:
            model.generate_batch(inputs=[[5, 6, 7]], generation_config=options)

    with sparsify(model, table_of(), k=K):
        sparse_step(model)
        with pytest.raises(TopThetaNotImplementedError, match=named):
            generate()
    assert model.config._attn_implementation == "sdpa"
