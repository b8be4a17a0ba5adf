from itertools import product

import pytest

from specdec.interfaces.compatibility import NamedDeclaration, effective_draws, mismatches
from specdec.interfaces.declarations import (
    ALL_SHAPES,
    BuilderDeclaration,
    DrafterDeclaration,
    Features,
    Gives,
    Guarantee,
    Shape,
    TargetDeclaration,
    VerifierDeclaration,
)
from specdec.trees.draft_tree import Draw

ANY = frozenset(Gives)


def broken(
    *,
    drafter=None,
    builder=None,
    verifier=None,
    target=None,
    allow_lossy=False,
):
    """The rules that break, with parts that fit everywhere else."""
    drafter = drafter or DrafterDeclaration(Gives.DISTRIBUTIONS)
    builder = builder or BuilderDeclaration(Draw.DETERMINISTIC, Shape.TREE, ANY)
    verifier = verifier or VerifierDeclaration(frozenset(Draw), ALL_SHAPES, reads_q=False)
    found = mismatches(
        drafter=NamedDeclaration("d", drafter),
        builder=NamedDeclaration("b", builder),
        verifier=NamedDeclaration("v", verifier),
        target=None if target is None else NamedDeclaration("t", target),
        allow_lossy=allow_lossy,
    )
    return [mismatch.rule for mismatch in found]


def test_parts_that_fit_break_no_rule():
    assert broken(target=TargetDeclaration()) == []


@pytest.mark.parametrize(("draw", "shape", "accepted"), list(product(Draw, Shape, Draw)))
def test_a_draw_fits_a_rule_that_accepts_it_and_in_a_chain_a_draw_from_q_is_of_every_kind(draw, shape, accepted):
    rules = broken(
        builder=BuilderDeclaration(draw, shape, ANY),
        verifier=VerifierDeclaration(frozenset({accepted}), ALL_SHAPES, reads_q=False),
    )
    single = {Draw.IID, Draw.WITHOUT_REPLACEMENT, Draw.TOP_THEN_ONE, Draw.PAIR}
    fits = draw is accepted or (shape is Shape.CHAIN and {draw, accepted} <= single)
    assert rules == ([] if fits else ["draw"])


def test_a_chain_of_coupled_draws_is_nothing_but_coupled():
    assert effective_draws(BuilderDeclaration(Draw.COUPLED, Shape.CHAIN, ANY)) == {Draw.COUPLED}


def test_a_tree_does_not_fit_a_rule_for_chains():
    rule = VerifierDeclaration(frozenset(Draw), frozenset({Shape.CHAIN}), reads_q=False)
    assert broken(verifier=rule) == ["shape"]
    assert broken(verifier=rule, builder=BuilderDeclaration(Draw.IID, Shape.CHAIN, ANY)) == []


def test_a_rule_that_reads_q_needs_distributions_and_no_pruning_on_draws():
    reads = VerifierDeclaration(frozenset(Draw), ALL_SHAPES, reads_q=True)
    assert broken(verifier=reads, drafter=DrafterDeclaration(Gives.CANDIDATES)) == ["reads-q"]
    pruned = BuilderDeclaration(Draw.IID, Shape.TREE, ANY, prunes_on_draws=True)
    assert broken(verifier=reads, builder=pruned) == ["prunes-on-draws"]
    assert broken(builder=pruned) == []


def test_a_builder_that_needs_q_does_not_fit_candidates():
    drawing = BuilderDeclaration(Draw.IID, Shape.TREE, frozenset({Gives.DISTRIBUTIONS}))
    assert broken(builder=drawing, drafter=DrafterDeclaration(Gives.CANDIDATES)) == ["needs"]


def test_a_lossy_rule_needs_leave():
    lossy = VerifierDeclaration(frozenset(Draw), ALL_SHAPES, reads_q=False, guarantee=Guarantee.LOSSY)
    assert broken(verifier=lossy) == ["lossy"]
    assert broken(verifier=lossy, allow_lossy=True) == []


def test_a_target_without_trees_still_takes_chains():
    target = TargetDeclaration(no_trees_because="flash attention")
    assert broken(target=target) == ["trees"]
    assert broken(target=target, builder=BuilderDeclaration(Draw.DETERMINISTIC, Shape.CHAIN, ANY)) == []


def test_a_target_that_cannot_be_decoded_is_refused():
    assert broken(target=TargetDeclaration(no_decoding_because="recurrent layers")) == ["target"]


def test_layers_that_the_target_lacks_are_refused_and_the_last_layer_s_output_is_not():
    wants = DrafterDeclaration(Gives.DISTRIBUTIONS, features=Features(layers=(1, 12)))
    assert broken(drafter=wants, target=TargetDeclaration(num_layers=12)) == []
    assert broken(drafter=wants, target=TargetDeclaration(num_layers=11)) == ["features"]
    assert broken(drafter=wants, target=TargetDeclaration(num_layers=None)) == []


def test_all_broken_rules_are_reported_together_and_name_their_fields():
    found = mismatches(
        drafter=NamedDeclaration("ngram", DrafterDeclaration(Gives.CANDIDATES)),
        builder=NamedDeclaration(
            "sampled",
            BuilderDeclaration(Draw.IID, Shape.TREE, frozenset({Gives.DISTRIBUTIONS}), prunes_on_draws=True),
        ),
        verifier=NamedDeclaration(
            "odd",
            VerifierDeclaration(
                frozenset({Draw.DETERMINISTIC}), frozenset({Shape.CHAIN}), reads_q=True, guarantee=Guarantee.LOSSY
            ),
        ),
    )
    assert [mismatch.rule for mismatch in found] == ["needs", "draw", "shape", "prunes-on-draws", "reads-q", "lossy"]
    assert "'ngram'" in found[0].message
    assert found[1].fields == ("tree", "verifier")


def test_features_are_true_only_when_something_is_wanted():
    assert not Features()
    assert Features(last=True)
    assert Features(layers=(0,))


def test_coupled_draws_go_with_no_rule_that_reads_q_whatever_it_accepts():
    builder = NamedDeclaration("coupled", BuilderDeclaration(Draw.COUPLED, Shape.CHAIN, ANY))
    drafter = NamedDeclaration("model", DrafterDeclaration(Gives.DISTRIBUTIONS))
    for reads_q in (False, True):
        rule = NamedDeclaration("rule", VerifierDeclaration(frozenset(Draw), ALL_SHAPES, reads_q=reads_q))
        found = [mismatch.rule for mismatch in mismatches(drafter=drafter, builder=builder, verifier=rule)]
        assert found == (["coupled"] if reads_q else [])
