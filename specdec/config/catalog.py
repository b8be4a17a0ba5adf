"""What specs may name: the parts and files of specdec and of installed plug-ins."""

import warnings
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from specdec.config.library import Catalog, library
from specdec.errors import PluginError, SpecdecWarning
from specdec.interfaces.consent import consented
from specdec.plugins.loading import load_registry
from specdec.plugins.registry import extended, plugin_error


def load_catalog(*, parts: Iterable[type[Any]] = (), trust_remote_code: bool | None = None) -> Catalog:
    """Our parts and files and those of installed plug-ins; a plug-in that is broken is left out with a warning.

    Args:
        parts: Further part classes, such as those of a notebook, for this catalog alone.
        trust_remote_code: Consent to code that models bring; None: what SPECDEC_TRUST_REMOTE_CODE says.
    """
    registry = extended(load_registry(), parts)
    files, broken = library(), dict(registry.broken)
    for folder, package in registry.libraries.items():
        more = library((*files.folders[1:], folder))
        try:
            more.check()
        except PluginError as error:
            broken[package] = str(plugin_error(package, f": {error}"))
            warnings.warn(f"left out: {broken[package]}", SpecdecWarning, stacklevel=2)
        else:
            files = more
    return Catalog(replace(registry, broken=broken), files, consented(trust_remote_code))
