"""The self-test finds what makes bits depend on company, and names it."""

import pytest
import torch

from specdec.errors import NumericsError, TargetMismatch
from specdec.interfaces.declarations import Features
from specdec.targets.assembly import RunSettings, assemble
from specdec.targets.bitwise import BitwiseRuntime
from specdec.targets.bitwise_forward import SHORTEST, FixedForward
from specdec.targets.bitwise_loading import no_bitwise_because
from specdec.targets.bitwise_proof import WIDTHS, fault_at, proved_forward
from specdec.targets.capability import Limits, mask_plan
from specdec.targets.model_call import ModelCall
from specdec.trees.draft_tree import root_only

SMALL = 2.0**-20


@pytest.fixture(scope="session", autouse=True)
def _imported(make_runtime):
    """transformers has its models' modules before the first test."""


def planted(make_model, fault):
    """A float32 model whose first MLP's output is changed by `fault`: (rows [rows, 1, hidden]) -> what is added."""
    model = make_model("llama", torch.float32)
    model.model.layers[0].mlp.register_forward_hook(lambda _, __, output: output + fault(output))
    return ModelCall(model), mask_plan(model.config)


def mixing(output):
    return SMALL * output.mean(0, keepdim=True)


def by_row(output):
    return SMALL * torch.arange(len(output))[:, None, None].expand_as(output)


def last_row(output):
    return SMALL * (torch.arange(len(output)) == len(output) - 1)[:, None, None].expand_as(output)


def by_half(output):
    return SMALL * (torch.arange(len(output)) >= len(output) // 2)[:, None, None].expand_as(output)


def by_zero(output):
    return torch.zeros_like(output)


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        (mixing, "among others have other bits"),
        (by_row, "instead of 0 has other bits"),
        (last_row, "instead of 0 has other bits"),
        (by_half, "instead of 0 has other bits"),
        (lambda output: output * float("nan"), "other bits"),
    ],
    ids=["rows that mix", "rows by number", "a last row", "rows by half", "no numbers"],
)
def test_bits_that_depend_on_row_or_company_are_refused_with_what_was_seen(fault, seen, make_model):
    call, masks = planted(make_model, fault)
    with pytest.raises(TargetMismatch, match=seen) as refusal:
        proved_forward(call, masks, 256)
    for width in WIDTHS:
        assert f"width {width}:" in str(refusal.value)


def test_a_model_without_fault_passes_at_the_first_width(make_model):
    call, masks = planted(make_model, by_zero)
    try:
        assert proved_forward(call, masks, 256).width == WIDTHS[0]
    except TargetMismatch as refusal:
        pytest.skip(str(refusal))


def test_a_width_that_fails_leaves_the_next(make_model):
    call, masks = planted(make_model, lambda output: mixing(output) if len(output) == WIDTHS[0] else by_zero(output))
    assert proved_forward(call, masks, 256).width == WIDTHS[1]


def test_experts_that_run_on_what_is_routed_to_them_are_found_in_float32(make_model):
    model = make_model("mixtral", torch.float32)
    forward = FixedForward(ModelCall(model), mask_plan(model.config), 16)
    model.set_experts_implementation("batched_mm")
    if fault_at(forward, SHORTEST, 256) is not None:
        pytest.skip("this machine's products of fixed size do not repeat their bits")
    model.set_experts_implementation("eager")
    found = fault_at(forward, SHORTEST, 256)
    if found is None:
        pytest.skip("this machine's products have the same bits for any number of rows")
    assert "among others have other bits" in found


def test_a_longer_path_is_proved_before_its_first_token_and_its_failure_spoils_nothing(make_model, prompt):
    lengths = [0]

    def fault(output):
        return mixing(output) if lengths[-1] > SHORTEST else by_zero(output)

    call, masks = planted(make_model, fault)
    call.model.register_forward_pre_hook(
        lambda _, __, kwargs: lengths.append(kwargs["attention_mask"].shape[-1] if kwargs["attention_mask"] is not None else 0),
        with_kwargs=True,
    )
    runtime = BitwiseRuntime(proved_forward(call, masks, 256), Limits(256, 512))
    state, _ = runtime.prefill([prompt(SHORTEST - 1)], Features())
    inside = runtime.score(state, [root_only(5, SHORTEST - 1)])
    runtime.commit(state, [[]])
    for _ in range(2):
        with pytest.raises(NumericsError, match="bitwise mode ends here"):
            runtime.score(state, [root_only(6, SHORTEST)])
    state.check_integrity()
    assert state.lengths == (SHORTEST,)
    again, _ = runtime.prefill([prompt(SHORTEST - 1)], Features())
    assert torch.equal(runtime.score(again, [root_only(5, SHORTEST - 1)])[0].logits, inside[0].logits)


@pytest.mark.slow
def test_another_number_of_threads_is_proved_anew(make_model, prompt):
    threads = torch.get_num_threads()
    others = 2 if threads == 1 else 1
    call, masks = planted(make_model, lambda output: by_zero(output) if torch.get_num_threads() == threads else mixing(output))
    runtime = BitwiseRuntime(proved_forward(call, masks, 256), Limits(256, 512))
    torch.set_num_threads(others)
    try:
        with pytest.raises(NumericsError, match=f"{others} threads"):
            runtime.prefill([prompt(4)], Features())
    finally:
        torch.set_num_threads(threads)
    runtime.prefill([prompt(4)], Features())


def test_models_that_count_slots_are_refused_by_config_and_by_trial(make_model):
    model = make_model("bloom")
    assert "ALiBi" in no_bitwise_because(model.config)
    assert no_bitwise_because(make_model("gemma3").config) is None
    with pytest.raises(TargetMismatch, match="bitwise mode is refused: this model scores chains only"):
        assemble(model, RunSettings(512, None, False, True), "bloom")


def test_a_forward_that_gives_other_logits_than_the_model_is_refused(make_model):
    model = make_model("llama", torch.float32)
    model.model.layers[0].mlp.register_forward_hook(lambda _, __, output: output * (2.0 if output.shape[1] == 1 else 1.0))
    with pytest.raises(TargetMismatch, match="differ from those on its paths"):
        assemble(model, RunSettings(512, None, True, True), "llama")


def test_experts_are_run_in_products_of_fixed_size(make_model):
    model = make_model("mixtral", torch.float32)
    facts = assemble(model, RunSettings(512, None, True, True), "mixtral").facts
    assert model.get_experts_implementation()[""] == "batched_mm"
    assert "bitwise at width" in facts.description
