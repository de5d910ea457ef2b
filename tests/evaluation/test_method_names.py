"""Methods in words: what is understood, what is refused and how, and what is made of it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.evaluation.small_model import logits_and_statistics, random_windows, small_model
from toptheta_npu.errors import TopThetaTypeError, TopThetaValueError
from toptheta_npu.evaluation.methods.after_top_k import after_top_k
from toptheta_npu.evaluation.methods.kinds import KINDS, make_method, parse_method
from toptheta_npu.evaluation.methods.method import EVERY_KEY, Method
from toptheta_npu.evaluation.methods.spec import MethodKind, Option
from toptheta_npu.fallback.prefill import RowChunk

_VALUES = {
    "sdc": ["none", "exact", "exp_threshold", "offline"], "vmc": ["true", "false"], "gamma": ["0.1", "0.05", "1"],
    "selection": ["own", "union"], "layer_k": ["table", "equal"], "page": ["16", "32"],
    "keep": ["recent", "first_and_last"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "canonical", "label"),
    [
        ("top-theta", "top-theta", "Top-θ + SDC + VMC"),
        ("top-theta:vmc=false", "top-theta:vmc=false", "Top-θ + SDC"),
        ("top-theta:sdc=none", "top-theta:sdc=none", "Top-θ"),
        (" top-theta : vmc = true , sdc = exact ", "top-theta", "Top-θ + SDC + VMC"),
        ("top-theta:selection=union", "top-theta:selection=union", "Top-θ + SDC + VMC, group union"),
        ("top-theta:sdc=offline", "top-theta:sdc=offline", "Top-θ + offline SDC + VMC"),
        ("top-theta:gamma=0.050,sdc=exp_threshold", "top-theta:sdc=exp_threshold", "Top-θ + exp-threshold SDC + VMC"),
        (
            "top-theta:gamma=.1,sdc=exp_threshold,vmc=false",
            "top-theta:sdc=exp_threshold,vmc=false,gamma=0.1",
            "Top-θ + exp-threshold SDC, gamma 0.1",
        ),
        ("top-theta-capped", "top-theta-capped", "Top-θ + SDC + VMC, recent k"),
        (
            "top-theta-capped:keep=first_and_last",
            "top-theta-capped:keep=first_and_last",
            "Top-θ + SDC + VMC, first_and_last k",
        ),
        ("tau", "tau", "τ + SDC + VMC, 0.001"),
        (
            "tau:lse=sampled,tau=0.0005",
            "tau:tau=0.0005,lse=sampled",
            "τ + SDC + VMC, 0.0005, sampled LSE",
        ),
        ("top-k:layer_k=equal,sdc=none", "top-k:sdc=none,layer_k=equal", "Top-k, equal k"),
        ("last-k", "last-k", "last-k"),
        ("pages:page=32", "pages:page=32", "pages (Quest), pages of 32"),
    ],
)
def test_texts_have_one_form_and_a_label(text: str, canonical: str, label: str) -> None:
    spec = parse_method(text)
    assert spec.text == canonical
    assert spec.label == label
    assert parse_method(canonical) == spec
    assert hash(parse_method(canonical)) == hash(spec)


def test_a_label_with_a_placement_is_that_of_the_demo() -> None:
    assert parse_method("top-theta").label_with("post_softmax") == "Top-θ post + VMC"
    assert parse_method("top-theta").label_with("pre_softmax") == "Top-θ pre + SDC + VMC"
    assert parse_method("top-k").label_with("post_softmax") == "Top-k + SDC + VMC"


@given(name=st.sampled_from(list(KINDS)), options=st.dictionaries(st.sampled_from(sorted(_VALUES)), st.integers(0, 3)))
def test_what_is_understood_has_the_values_given_and_round_trips(name: str, options: dict[str, int]) -> None:
    words = {option: _VALUES[option][index % len(_VALUES[option])] for option, index in options.items()}
    text = ",".join(f"{option}={word}" for option, word in words.items())
    with contextlib.suppress(TopThetaValueError):  # most do not go together
        spec = parse_method(f"{name}:{text}" if text else name)
        assert parse_method(spec.text) == spec
        for option, word in words.items():
            value = spec.options[option]
            assert (float(word) if option == "gamma" else word) == (value if option == "gamma" else str(value).lower())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("top_theta", "method: expected the name of a method, got 'top_theta'; did you mean top-theta?"),
        ("", "method: expected the name of a method, got ''; known are dense, last-k, pages, tau, "),
        ("top-theta:", "method top-theta: expected an option as name=value, got ''; such as top-theta:sdc=none"),
        ("top-theta:vmc=", "expected an option as name=value, got 'vmc='"),
        ("top-k:gamma=1", "expected an option that it has, got 'gamma'; it has sdc, vmc, selection, layer_k"),
        ("dense:sdc=none", "method dense: expected an option that it has, got 'sdc'; it has none"),
        ("pages:page=64,page=32", "method pages: expected page once, got it twice; remove one of them"),
        ("tau:tau=-1", "method tau: tau: expected a number >= 0, got '-1'"),
        ("tau:tau=nan", "tau: expected a number >= 0, got 'nan'"),
        ("tau:lse=newest", "method tau: lse: expected one of exact, sampled, got 'newest'"),
        ("pages:page=0", "method pages: page: expected a whole number from 1 on, got '0'"),
        ("pages:page=1.5", "page: expected a whole number from 1 on, got '1.5'"),
        ("top-k:vmc=yes", "method top-k: vmc: expected one of true, false, got 'yes'"),
        ("top-k:sdc=offline", "method top-k: sdc: expected one of none, exact, got 'offline'"),
        ("top-theta:sdc=exact,gamma=1", "top-theta: gamma needs sdc=exp_threshold; leave it out with sdc=exact"),
        ("top-theta:sdc=none,vmc=true", "vmc=true excludes sdc=none, which leaves no mass to give back; use sdc=exact"),
        ("top-theta:selection=union,sdc=offline", "selection=union needs sdc=exact or sdc=none; sdc=offline"),
    ],
)
def test_what_is_not_understood_is_refused(text: str, message: str) -> None:
    with pytest.raises(TopThetaValueError, match=re.escape(message)):
        parse_method(text)


def test_a_method_is_a_text() -> None:
    with pytest.raises(TopThetaTypeError, match="method: expected a text such as top-theta:sdc=none, got 3"):
        parse_method(3)  # type: ignore[arg-type]


def test_specs_say_which_points_there_are() -> None:
    assert {name for name, kind in KINDS.items() if kind.needs_table} == {"top-theta", "top-theta-capped"}
    assert {name for name, kind in KINDS.items() if not kind.has_k} == {"dense", "tau"}


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("last-k", {"k": 8}, "targets: expected a value, which last-k needs, got None"),
        ("top-theta", {"k": 8}, "table: expected a value"),
        ("top-k", {"targets": [8]}, "k: expected a value"),
    ],
)
def test_what_a_method_needs_must_be_given(text: str, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(TopThetaValueError, match=message):
        make_method(text, **arguments)  # type: ignore[arg-type]


def test_methods_carry_the_label_and_k_of_their_spec() -> None:
    assert make_method("dense").family == "dense"
    made = make_method("top-k:layer_k=equal,sdc=none", 8, targets=[16, 16, 8, 8])
    assert (made.family, made.k) == ("Top-k, equal k", 8)
    assert made.key_reads == EVERY_KEY


def test_the_page_has_a_row_for_every_method() -> None:
    page = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| .* \| (.*) \|$", page, flags=re.MULTILINE))
    assert {name: set(re.findall(r"`([a-z_]+)`", rows.get(name, ""))) for name in KINDS} == {
        name: set(kind.options) for name, kind in KINDS.items()
    }


def test_an_entry_makes_a_method(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe of the room: a kind with an option of its own, and an entry."""

    def every(step: int, targets: Sequence[int]) -> Method:
        def select(chunk: RowChunk) -> Tensor:
            return torch.arange(chunk.scores.shape[-1]).remainder(step).eq(0).expand_as(chunk.scores)

        return Method("every so many, every 4.", None, lambda model: after_top_k(model, targets, select))

    kind = MethodKind(
        "every", "every so many", make=lambda spec, setting: every(spec.options["step"], setting.targets),
        options={"step": Option(2, label="every {}.")},
    )  # fmt: skip
    monkeypatch.setitem(KINDS, "every", kind)
    spec = parse_method("every:step=4")
    assert (spec.text, spec.label) == ("every:step=4", "every so many, every 4.")
    method, model = spec.make(8, targets=[8] * 4), small_model()
    _, layers = logits_and_statistics(method, model, random_windows(1, seed=1))
    assert method.family == spec.label
    assert torch.equal(layers[2].kept[:, 0], (layers[2].keys + 3) // 4)
