"""What a step callback sees: every step, with levels and ranks that agree with the records."""

from specdec.decoding.callbacks import draft_levels, ranked_children
from specdec.decoding.requests import Request
from specdec.trees.draft_tree import Draw, TreeSketch


def watched_run(decoder, prompts, **options):
    infos = []
    run = decoder.start([Request(p, **options) for p in prompts], step_callback=infos.append)
    while run.sequences:
        decoder.step(run)
    return run, infos


def test_every_step_of_every_sequence_is_seen_once_with_its_record(compose, table, strategy):
    decoder = compose(table(), strategy)
    run, infos = watched_run(decoder, [[1, 2], [3], [4, 5, 6]], max_new_tokens=30)
    for row in run.ended:
        seen = [info.record for info in infos if info.sequence == row.number]
        assert all(a is b for a, b in zip(seen, row.records, strict=True))


def test_a_run_that_is_watched_gives_the_tokens_of_one_that_is_not(compose, table, strategy):
    decoder = compose(table(), strategy)
    run, _ = watched_run(decoder, [[1, 2]], max_new_tokens=30, seed=3, sampling={"temperature": 1.0})
    alone = decoder.generate([[1, 2]], max_new_tokens=30, seed=3, sampling={"temperature": 1.0})[0]
    assert tuple(run.ended[0].emitted.tokens) == alone.tokens


def test_tested_levels_are_as_many_as_the_record_says_and_accepted_ones_have_a_rank(compose, table, strategy):
    decoder = compose(table(), strategy)
    _, infos = watched_run(decoder, [[1, 2], [3]], max_new_tokens=40, sampling={"temperature": 1.0}, seed=1)
    ranks = set()
    for info in infos:
        levels = draft_levels(info)
        assert len(levels) == info.record.tested
        taken = [level for level in levels if level.rank is not None]
        assert len(taken) == min(len(info.verdict.path), info.record.tested)
        for level, node in zip(taken, info.verdict.path, strict=False):
            drawn = list(dict.fromkeys(info.tree.draw_order[level.node]))
            assert drawn[level.rank] == node
            assert level.num_children == len(set(drawn)) == len(info.tree.children[level.node])
            ranks.add(level.rank)
    assert 0 in ranks


def test_a_child_that_was_drawn_twice_has_the_rank_of_its_first_draw():
    sketch = TreeSketch(0, 5)
    first, second = sketch.add(0, 1), sketch.add(0, 2)
    tree = sketch.freeze(Draw.IID, draw_order={0: (second, second, first)})
    assert ranked_children(tree, 0) == [second, first]
    assert ranked_children(tree, first) == []
