"""The self-test finds what makes bits depend on company, and names it."""

import pytest
import torch

from specdec.errors import NumericsError, TargetMismatch
from specdec.interfaces.declarations import Features
from specdec.targets.assembly import RunSettings, assemble
from specdec.targets.bitwise import BitwiseRuntime
from specdec.targets.bitwise_forward import SHORTEST, FixedForward
from specdec.targets.bitwise_loading import no_bitwise_because
from specdec.targets.bitwise_proof import CHAIN, WIDTHS, fault_at, proved_forward
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
        (by_row, r"instead of \d+ has other bits"),
        (last_row, r"instead of \d+ has other bits"),
        (by_half, r"instead of \d+ has other bits"),
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


@pytest.mark.parametrize(("first", "last"), [(17, 30), (60, 80), (110, SHORTEST)])
def test_rows_that_differ_over_paths_of_some_lengths_only_are_refused(first, last, make_model):
    seen = [0]

    def fault(output):
        return by_half(output) if first <= seen[-1] <= last else by_zero(output)

    call, masks = planted(make_model, fault)
    call.model.register_forward_pre_hook(
        lambda _, __, kwargs: seen.append(int((kwargs["attention_mask"][0] == 0).sum())),
        with_kwargs=True,
    )
    found = fault_at(FixedForward(call, masks, 16), SHORTEST, 256)
    assert "a token in row 8 instead of 0 has other bits" in found


def test_a_text_of_the_models_tokenizer_is_what_the_rows_hold(make_model):
    call, masks = planted(make_model, by_zero)
    fed = []
    call.model.register_forward_pre_hook(lambda _, __, kwargs: fed.append(kwargs["input_ids"][:, 0].tolist()), with_kwargs=True)
    assert fault_at(FixedForward(call, masks, 16), SHORTEST, 256, [70, 71, 5000]) is None
    blocks = (SHORTEST - CHAIN) // 16
    assert fed[: 2 * blocks] == [[70, 71] * 8] * 2 * blocks


def test_rows_that_differ_at_a_rare_token_of_the_text_only_are_refused(make_model):
    """As in half precision, where rounding hides the difference nearly everywhere."""
    ids = [torch.zeros(1, 1)]
    call, masks = planted(make_model, lambda output: by_half(output) * (ids[-1] == 41)[..., None])
    call.model.register_forward_pre_hook(lambda _, __, kwargs: ids.append(kwargs["input_ids"]), with_kwargs=True)
    sample = [3 + at % 30 for at in range(120)]
    assert fault_at(FixedForward(call, masks, 16), SHORTEST, 256, sample) is None
    sample[83] = 41
    assert "other bits after 83 of a text" in fault_at(FixedForward(call, masks, 16), SHORTEST, 256, sample)


def test_a_token_is_put_into_every_row_of_one_forward(make_model):
    """Company that is the same for all rows hides what only rows of equal content show."""
    call, masks = planted(make_model, lambda output: by_half(output) if torch.equal(output[0], output[-1]) else by_zero(output))
    assert "a token in row 8 instead of 0" in fault_at(FixedForward(call, masks, 16), SHORTEST, 256)


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_two_threads_pass_since_each_row_is_attended_to_alone(dtype, attention, make_model):
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        model = make_model("llama", dtype, attention)
        assert proved_forward(ModelCall(model), mask_plan(model.config), 256).width == WIDTHS[0]
    finally:
        torch.set_num_threads(threads)


def test_a_model_without_fault_passes_at_the_first_width(make_model, skip_unless_repeatable):
    call, masks = planted(make_model, by_zero)
    with skip_unless_repeatable(torch.float32):
        assert proved_forward(call, masks, 256).width == WIDTHS[0]


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
    assert "other bits" in found


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
