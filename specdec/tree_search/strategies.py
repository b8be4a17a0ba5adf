"""The shape that a strategy drafts, where it has one."""

from specdec.config.resolved_spec import ResolvedSpec
from specdec.errors import SpecError
from specdec.interfaces.declarations import Kind
from specdec.tree_builders.chain import ChainOptions
from specdec.tree_builders.shape_options import ShapeOptions
from specdec.trees.tree_shape import TreeShape


def shape_of(resolved: ResolvedSpec) -> TreeShape:
    """The shape of a strategy; empty for one that drafts nothing. Raises SpecError for a tree that depends on the text."""
    if not resolved.parts[Kind.DRAFTER].declares.drafts:
        return TreeShape(())
    part = resolved.parts[Kind.TREE]
    if isinstance(part.options, ChainOptions):
        return TreeShape.chain(part.options.length)
    if isinstance(part.options, ShapeOptions):
        return part.options.shape(resolved.find_tree)
    raise SpecError(f"{resolved.label}: tree '{part.name}' has no shape of its own; chain, fixed and sampled trees have one")
