"""What makes a draft tree one: checked before a tree is scored, since a wrong one becomes a wrong output."""

from specdec.trees.draft_tree import DraftTree, Draw, TreeError


def validate(tree: DraftTree, *, vocab_size: int) -> None:
    """Raise TreeError, naming the node, unless `tree` obeys every rule of its docstring. Linear time, no recursion."""
    size = len(tree.tokens)
    if size == 0:
        raise TreeError("a tree has at least a root; this one has 0 nodes")
    if not len(tree.parents) == len(tree.depths) == len(tree.children) == size:
        raise TreeError(f"tokens, parents, depths and children differ in length: {size} tokens")
    if tree.parents[0] != -1 or tree.depths[0] != 0:
        raise TreeError("node 0 must be the root: parent -1, depth 0")
    _validate_nodes(tree, vocab_size)
    _validate_draws(tree, vocab_size)


def _validate_nodes(tree: DraftTree, vocab_size: int) -> None:
    seen: set[tuple[int, int]] = set()
    for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
        if type(token) is not int:
            raise TreeError(f"node {node}: its token is a {type(token).__name__}; expected an int, such as `int(token)`")
        if not 0 <= token < vocab_size:
            raise TreeError(f"node {node}: token {token} is outside the target's vocabulary of {vocab_size}")
        if node == 0:
            continue
        if not 0 <= parent < node:
            raise TreeError(f"node {node}: parent {parent} is missing or does not come before it")
        if tree.depths[node] != tree.depths[parent] + 1:
            raise TreeError(f"node {node}: depth {tree.depths[node]} is not one more than its parent's")
        if (parent, token) in seen:
            raise TreeError(f"node {node}: its parent {parent} has another child with token {token}")
        if node not in tree.children[parent]:
            raise TreeError(f"node {node}: absent from the children of its parent {parent}")
        seen.add((parent, token))
    if sum(map(len, tree.children)) != len(tree.tokens) - 1:
        raise TreeError("children lists name a node twice, or a node that does not exist")


def _validate_draws(tree: DraftTree, vocab_size: int) -> None:
    for parent, drawn in tree.draw_order.items():
        if not 0 <= parent < len(tree.tokens):
            raise TreeError(f"draw_order names node {parent}, which does not exist")
        if parent not in tree.draw_kind:
            raise TreeError(f"node {parent}: its children carry no kind of draw")
        strangers = set(drawn) - set(tree.children[parent])
        if strangers:
            raise TreeError(f"node {parent}: draw_order names nodes {sorted(strangers)} that are not its children")
        if len(set(drawn)) != len(drawn) and tree.draw_kind[parent] is not Draw.IID:
            raise TreeError(f"node {parent}: only i.i.d. draws may repeat a child")
        if len(drawn) > 2 and tree.draw_kind[parent] is Draw.PAIR:
            raise TreeError(f"node {parent}: a pair has two children, not {len(drawn)}")
    for parent, children in enumerate(tree.children):
        missing = set(children) - set(tree.draw_order.get(parent, ())) - tree.scouts
        if missing:
            raise TreeError(f"node {parent}: children {sorted(missing)} are in no draw")
    if tree.q is not None and any(not -1 <= row < len(tree.q) for row in tree.q_row):
        raise TreeError(f"q_row names a row outside the {len(tree.q)} rows of q")
    if tree.q is not None and len(tree.q_row) != len(tree.tokens):
        raise TreeError(f"q_row has {len(tree.q_row)} entries for {len(tree.tokens)} nodes")
    if tree.q is not None and tree.q.shape[-1] != vocab_size:
        raise TreeError(f"q has {tree.q.shape[-1]} columns; the target's vocabulary has {vocab_size}")
