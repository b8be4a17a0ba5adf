"""Verifiers that are almost right, or admit that they are not, brought in as a plug-in by the public hooks."""

from types import ModuleType
from typing import ClassVar

import pluggy

from specdec.config.library import Catalog, library
from specdec.interfaces.declarations import Guarantee, Shape, VerifierDeclaration
from specdec.interfaces.parts import PartOptions, Verifier
from specdec.interfaces.results import Verdict
from specdec.plugins import builtin as builtin_plugin
from specdec.plugins import hookspecs
from specdec.plugins.hookspecs import hookimpl
from specdec.plugins.loading import registry_of
from specdec.trees.draft_tree import Draw

ACCEPTS = frozenset({Draw.IID, Draw.WITHOUT_REPLACEMENT})


def walk(tree, p, rng, leak, from_residual):
    """Rejection sampling along a chain that takes a draft unseen with probability `leak`."""
    path, node = [], 0
    while drawn := tree.draw_order.get(node, ()):
        child = drawn[0]
        q, dist, token = tree.q_of(node), p.row(node), tree.tokens[child]
        taken = bool(leak) and rng.flip(leak)
        if not taken and not rng.flip(min(1.0, dist.prob(token) / float(q[token]))):
            left = (dist.residual(q) or dist) if from_residual else dist
            return Verdict(tuple(path), left.choose(rng, tree.root_position + tree.depths[child]), False)
        path.append(child)
        node = child
    return Verdict(tuple(path), p.row(node).choose(rng, tree.root_position + tree.depths[node] + 1), True)


class Resampling(Verifier[PartOptions]):
    """After a rejection it draws from p, and not from what is left of p."""

    name: ClassVar[str] = "resampling"
    Options: ClassVar[type[PartOptions]] = PartOptions

    @classmethod
    def declares(cls, options):
        return VerifierDeclaration(accepts=ACCEPTS, shapes=frozenset({Shape.CHAIN}), reads_q=True)

    @classmethod
    def build(cls, options, tools):
        return cls()

    def verify(self, tree, p, rng):
        return walk(tree, p, rng, 0.0, False)


class Leaking(Verifier[PartOptions]):
    """One draft in fifty is taken as it is: the distribution is 0.98 p + 0.02 q."""

    name: ClassVar[str] = "leaking"
    Options: ClassVar[type[PartOptions]] = PartOptions

    @classmethod
    def declares(cls, options):
        return VerifierDeclaration(accepts=ACCEPTS, shapes=frozenset({Shape.CHAIN}), reads_q=True)

    @classmethod
    def build(cls, options, tools):
        return cls()

    def verify(self, tree, p, rng):
        return walk(tree, p, rng, 0.02, True)


class Lenient(Verifier[PartOptions]):
    """Takes half of all drafts as they are, and says that it is lossy."""

    name: ClassVar[str] = "lenient"
    Options: ClassVar[type[PartOptions]] = PartOptions

    @classmethod
    def declares(cls, options):
        return VerifierDeclaration(ACCEPTS, frozenset({Shape.CHAIN}), reads_q=True, guarantee=Guarantee.LOSSY)

    @classmethod
    def build(cls, options, tools):
        return cls()

    def verify(self, tree, p, rng):
        return walk(tree, p, rng, 0.5, True)


def planted_workshop() -> Catalog:
    """specdec with these verifiers installed."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(builtin_plugin, "specdec")
    plugin = ModuleType("planted")
    plugin.specdec_verifiers = hookimpl(lambda: [Resampling, Leaking, Lenient])
    manager.register(plugin, "planted")
    return Catalog(registry_of(manager), library())
