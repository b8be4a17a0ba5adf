"""The page at `/`: three files of our own, and headers under which a browser loads nothing else."""

from collections.abc import Mapping
from importlib.resources import files

from starlette.responses import Response

FILES: Mapping[str, tuple[str, str]] = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
"""By path, the file and its kind."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Scripts and styles come from this server only, none stand in the page, and no text may become markup."""

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def page_file(path: str) -> Response:
    """One of the page's files."""
    name, kind = FILES[path]
    content = files("specdec.serving").joinpath("assets", name).read_bytes()
    return Response(content, headers=dict(HEADERS), media_type=kind)
