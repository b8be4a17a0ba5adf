"""Parts held to their contracts while they are proved: faults that name the part, and drafts cut to what can be enumerated."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

from specdec.decoding.decoder import Decoder
from specdec.errors import PluginError, SpecdecError
from specdec.interfaces.declarations import BuilderDeclaration
from specdec.interfaces.parts import BuildTools, PartOptions, TreeBuilder
from specdec.interfaces.proposals import Answer, Budget, Frontier
from specdec.interfaces.results import Verdict
from specdec.losslessness.exact.checked_rng import NotAFunctionOfItsDraws, OutOfTime
from specdec.sampling.distribution import TokenDist
from specdec.sampling.logits_warper import TargetProbs
from specdec.sampling.rng import DraftRng
from specdec.trees.draft_tree import DraftTree


@contextmanager
def blamed(part: str) -> Iterator[None]:
    """Turn any fault inside into a PluginError that names `part`; only what the enumeration itself raises passes."""
    try:
        yield
    except (NotAFunctionOfItsDraws, OutOfTime, PluginError):
        raise
    except SpecdecError as error:
        raise PluginError(f"{part}: {error}") from error
    except (Exception, SystemExit) as error:
        raise PluginError(f"{part} fails: {type(error).__name__}: {error}") from error


def check_verdict(verdict: Any, tree: DraftTree, *, vocab_size: int, verifier: str) -> Verdict:
    """The verdict, if it is one for this tree. Raises PluginError with the rule that it breaks.

    Whether `all_accepted` is true is left to the decode loop, which runs later: a wrong distribution is the worse fault, and
    is found first.
    """
    broken = _broken_rule(verdict, tree, vocab_size)
    if broken is not None:
        raise PluginError(f"verifier '{verifier}' {broken}")
    checked: Verdict = verdict
    return checked


class WatchedProbs:
    """The target's rows, which remembers the nodes whose row was asked for, in that order."""

    def __init__(self, target_probs: TargetProbs) -> None:
        self._inner = target_probs
        self.asked: list[int] = []

    def row(self, node: int) -> TokenDist:
        """As the rows themselves."""
        self.asked.append(node)
        return self._inner.row(node)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def check_reads(asked: Sequence[int], verdict: Verdict, verifier: str) -> None:
    """Raise PluginError for a verifier that declares Reads.PATH and asks for other rows than those of its path, in order.

    A processor that keeps a state is called row by row along the path; it would have seen tokens that were not emitted.
    """
    path = (0, *verdict.path)
    strangers = [node for node in dict.fromkeys(asked) if node not in path]
    if strangers:
        raise PluginError(
            f"verifier '{verifier}' declares that it reads the target's rows along its path, which is {list(path)}, and asked "
            f"for the row of node {strangers[0]}; a rule that reads others declares reads=Reads.TREE"
        )
    order = list(dict.fromkeys(asked))
    if order != sorted(order, key=path.index):
        raise PluginError(
            f"verifier '{verifier}' declares that it reads the target's rows along its path, which is {list(path)}, and asked "
            f"for them in the order {order}; a rule that reads them otherwise declares reads=Reads.TREE"
        )


def check_stated_q(tree: DraftTree, builder: str) -> None:
    """Raise PluginError, naming the builder, for a drawn token that the q of its parent rules out.

    The verifier that stumbles over it is not at fault.
    """
    for parent, drawn in tree.draw_order.items():
        if tree.q is None or tree.q_row[parent] < 0:
            continue
        q = tree.q_of(parent)
        for child in drawn:
            if not float(q[tree.tokens[child]]) > 0:
                raise PluginError(
                    f"tree '{builder}': node {child}: token {tree.tokens[child]} was drawn, and the q that is stated for its "
                    "parent gives it probability 0; store the row that was drawn from"
                )


def _broken_rule(verdict: Any, tree: DraftTree, vocab_size: int) -> str | None:
    if not isinstance(verdict, Verdict):
        return f"returned {type(verdict).__name__}, not a Verdict"
    path, token = verdict.path, verdict.next_token
    if not isinstance(path, tuple) or any(type(node) is not int for node in path):
        return f"returned the path {path!r}; expected a tuple of node numbers"
    above = 0
    for node in path:
        if not 0 < node < len(tree) or tree.parents[node] != above:
            return f"returned the path {path!r}, which does not lead from the root of a tree of {len(tree)} nodes downwards"
        if node in tree.scouts:
            return f"accepted node {node}, a scout"
        above = node
    if type(token) is not int or not 0 <= token < vocab_size:
        return f"returned the next token {token!r}; expected a whole number from 0 to {vocab_size - 1}"
    if type(verdict.all_accepted) is not bool:
        return f"returned all_accepted={verdict.all_accepted!r}; expected True or False"
    return None


def with_smaller_drafts(decoder: Decoder, *, depth: int | None, nodes: int | None) -> Decoder:
    """The decoder with a smaller budget for its builder, which then cuts the draft by its own code. None: as it is."""
    return decoder if depth is None and nodes is None else decoder.replace(builder=_budgeted(decoder.builder, depth, nodes))


def with_own_drafts(decoder: Decoder, *, depth: int | None = None, alone: bool = False) -> Decoder:
    """The decoder with drafts that nothing else makes smaller.

    The decode loop keeps nodes that it would drop for what they are worth. alone: the builder drafts as for one sequence,
    however many others there are.
    """
    return decoder.replace(builder=_budgeted(decoder.builder, depth, None, trimmed=False, alone=alone))


def _budgeted(
    builder: TreeBuilder, depth: int | None, nodes: int | None, *, trimmed: bool = True, alone: bool = False
) -> TreeBuilder:
    class Budgeted(TreeBuilder[PartOptions]):
        name: ClassVar[str] = builder.name
        Options: ClassVar[type[PartOptions]] = builder.Options

        @classmethod
        def declares(cls, options: PartOptions) -> BuilderDeclaration:
            return builder.declares(options)

        @classmethod
        def build(cls, options: PartOptions, tools: BuildTools) -> TreeBuilder:
            return builder.build(options, tools)

        def grow(
            self, root_token: int, root_position: int, budget: Budget, rng: DraftRng
        ) -> Generator[Frontier, Answer, DraftTree]:
            smaller = replace(
                budget,
                depth=budget.depth if depth is None else min(depth, budget.depth),
                nodes=budget.nodes if nodes is None else min(nodes, budget.nodes),
                rows=1 if alone else budget.rows,
                queue=budget.queue and not alone,
            )
            tree = yield from builder.grow(root_token, root_position, smaller, rng)
            return tree if trimmed or not isinstance(tree, DraftTree) else replace(tree, worth=None)

    made = Budgeted()
    made.declaration = builder.declaration
    return made
