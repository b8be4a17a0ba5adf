"""Tree lists of other projects: Medusa's, EAGLE's, vLLM's."""

import ast
from collections.abc import Sequence

from specdec.errors import SpecError
from specdec.trees.tree_shape import TreeShape


def from_choices(choices: Sequence[Sequence[int]]) -> TreeShape:
    """The shape of a list of rank lists: `medusa_choices` of Medusa, `choices.py` of EAGLE, vLLM's `speculative_token_tree`.

    Its order is kept where it may be. *Source: arXiv 2401.10774, 2401.15077.*
    """
    return TreeShape.of(choices)


def read_choices(text: str, *, variable: str | None = None, origin: str = "the list") -> TreeShape:
    """`from_choices` of a literal (JSON, or Python lists and tuples), or of a Python file that assigns it to `variable`.

    Nothing is executed. Raises SpecError with the line where there is one.
    """
    try:
        module = ast.parse(text.strip())
    except SyntaxError as error:
        raise SpecError(f"{origin}: line {error.lineno}: neither JSON nor Python: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise SpecError(f"{origin}: neither JSON nor Python: {_reason(error)}") from error
    values = {
        target.id: statement.value
        for statement in module.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }
    last = module.body[-1] if module.body else None
    value = last.value if variable is None and isinstance(last, ast.Expr) else values.get(variable or next(iter(values), ""))
    if value is None:
        wanted = "no list" if variable is None else f"no list called {variable!r}"
        raise SpecError(f"{origin}: {wanted}; names found: {', '.join(values) or 'none'}")
    try:
        choices = ast.literal_eval(value)
        return from_choices(choices)
    except SpecError as error:
        raise SpecError(f"{origin}: line {value.lineno}: {error}") from error
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise SpecError(f"{origin}: line {value.lineno}: a list of lists of ranks is needed") from error


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, ValueError) else "it is nested too deeply"
