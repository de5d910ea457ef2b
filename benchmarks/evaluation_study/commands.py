"""The commands of the study: which methods are measured on which tasks, with which thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from toptheta_npu.cli.evaluate.options import Options

#: Thresholds that ship with the embedded model, and those that the study calibrates.
SHIPPED = ("pre_softmax", "post_softmax")
WITH_MASS, EQUAL_PRE, EQUAL_POST = "pre_with_mass", "equal_pre", "equal_post"


#: The methods that every task has.
COMPARED = ("top-theta", "top-k", "last-k", "blasst", "pages")


@dataclass(frozen=True)
class Scale:
    """How much is measured.

    Attributes:
        windows: of text, of 2560 tokens each.
        positions: predicted at the end of each.
        prompts: of each kind, length and depth.
        lengths: of the prompts.
        documents: of each task of lm-eval.
        sequences: that thresholds are calibrated on.
        ks: of the comparison, ascending; the first two serve the rest.
    """

    windows: int = 32
    positions: int = 512
    prompts: int = 15
    lengths: tuple[int, ...] = (512, 1024, 2048)
    documents: int = 100
    sequences: int = 16
    ks: tuple[int, ...] = (32, 64, 128, 256)


FULL = Scale()
#: For continuous integration: every command, with little in it.
CUT = Scale(windows=2, positions=64, prompts=1, lengths=(512,), documents=2, sequences=1, ks=(32,))


@dataclass(frozen=True)
class Command:
    """One ``toptheta evaluate``. Commands of one file add to it."""

    file: str
    tasks: tuple[str, ...]
    methods: tuple[str, ...]
    tables: tuple[str, ...]
    ks: tuple[int, ...]
    windows: int | None = None

    def options(self, tables: Path, results: Path, scale: Scale) -> Options:
        """Make its options; without a model they mean the embedded one."""
        return Options(
            tables=[tables / f"{name}.theta" for name in self.tables], task=list(self.tasks),
            method=list(self.methods), k=list(self.ks), length=2560, windows=self.windows or scale.windows,
            positions=scale.positions, prompts=scale.prompts,
            prompt_length=list(scale.lengths if "key-value" in self.tasks else ()),
            limit=scale.documents if "toptheta_key_value_token" in self.tasks else None,
            output=results / f"{self.file}.jsonl",
        )  # fmt: skip


def commands(scale: Scale) -> list[Command]:
    """List all commands, in the order in which they run."""
    few = scale.ks[:2]
    perplexity = Command("perplexity", ("perplexity",), (), SHIPPED, scale.ks)
    return [
        replace(perplexity, methods=("dense", *COMPARED, "random-k", "value-mean")),
        replace(perplexity, methods=_compensations(), tables=(WITH_MASS,), ks=few[:1]),
        replace(perplexity, methods=("top-theta:vmc=false",), tables=SHIPPED[1:], ks=few[:1]),
        replace(perplexity, methods=("top-theta:selection=union", "top-k:selection=union"), ks=few),
        *_equal_first_layers(perplexity, few),
        Command("retrieval", ("key-value", "needle"), ("dense", *COMPARED), SHIPPED, few),
        Command("lm_eval", ("toptheta_key_value_token",), ("dense", "top-theta", "top-k"), SHIPPED[:1], few[-1:]),
    ]  # fmt: skip


def _compensations() -> tuple[str, ...]:
    """List SDC x VMC of the pre-softmax thresholds. Without SDC nothing is left for VMC to give back."""
    with_sdc = (f"top-theta:sdc={sdc},vmc={vmc}" for sdc in ("exact", "exp_threshold", "offline")
                for vmc in ("false", "true"))  # fmt: skip
    return ("top-theta:sdc=none,vmc=false", *with_sdc, "top-k:sdc=none,vmc=false", "top-k:sdc=exact,vmc=false")


def _equal_first_layers(perplexity: Command, ks: Sequence[int]) -> list[Command]:
    """Set an equal k in all layers against denser first ones, without compensation, as in the paper."""
    plain, post = "top-theta:sdc=none,vmc=false", "top-theta:vmc=false"
    base = replace(perplexity, ks=tuple(ks))
    return [
        replace(base, methods=(plain, "top-k:sdc=none,vmc=false", "top-k:sdc=none,vmc=false,layer_k=equal"),
                tables=(SHIPPED[0],)),
        replace(base, methods=(plain,), tables=(EQUAL_PRE,)),
        replace(base, methods=(post,), tables=(SHIPPED[1], EQUAL_POST)),
    ]  # fmt: skip
