"""The shape that a strategy drafts, where it has one."""

from specdec.config.resolved_spec import Plan
from specdec.errors import SpecError
from specdec.plugins.registry import Kind
from specdec.tree_builders.chain import ChainOptions
from specdec.tree_builders.shape_options import ShapeOptions
from specdec.trees.tree_shape import TreeShape


def shape_of(plan: Plan) -> TreeShape:
    """The shape of a strategy; empty for one that drafts nothing. Raises SpecError for a tree that depends on the text."""
    if not plan.parts[Kind.DRAFTER].declares.drafts:
        return TreeShape(())
    part = plan.parts[Kind.TREE]
    if isinstance(part.options, ChainOptions):
        return TreeShape.chain(part.options.length)
    if isinstance(part.options, ShapeOptions):
        return part.options.shape(plan.find_tree)
    raise SpecError(f"{plan.label}: tree '{part.name}' has no shape of its own; chain, fixed and sampled trees have one")
