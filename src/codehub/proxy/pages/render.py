"""Page models as answers: a page for a browser, JSON for the page that is open already, a problem for a program.

The document carries no script and no style of its own, so that the policy it is sent with can forbid both: whatever a
workspace is called, it is text. Its assets come from a reserved path of the same host, under names that change with
their content.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Final

from codehub.domain import addresses
from codehub.domain.access import AccessAction, access_to
from codehub.domain.workspace import Phase, Workspace
from codehub.proxy.access.verdicts import Header, Respond
from codehub.proxy.http.responses import problem
from codehub.proxy.pages.content import Action, PageModel, StepState
from codehub.proxy.pages.texts import SENTENCES, Language, say
from codehub.usecases.lifecycle import StopForecast

RESERVED: Final = addresses.RESERVED.encode()
"""The reserved path below the prefix of each host; the workspace never sees a request for it."""

POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_PAGE_HEADERS: Final[tuple[Header, ...]] = (
    (b"Content-Type", b"text/html; charset=utf-8"),
    (b"Content-Security-Policy", POLICY),
    (b"Cache-Control", b"no-store"),
    (b"X-Content-Type-Options", b"nosniff"),
    (b"Referrer-Policy", b"same-origin"),
    (b"X-Robots-Tag", b"noindex"),
    (b"Vary", b"Accept, Accept-Language"),
)
_CODES: Final[Mapping[str, str]] = {"signed_out": "unauthenticated", "limit": "limit_reached"}
"""The codes of problems for pages whose names the API does not use."""

_RETRY_AFTER: Final = {429: b"30", 503: b"5"}


# ── assets ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Asset:
    kind: bytes
    content: bytes
    mark: str

    def respond(self, caching: bytes) -> Respond:
        headers = (
            (b"Content-Type", self.kind),
            (b"Cache-Control", caching),
            (b"ETag", b'"%b"' % self.mark.encode()),
            (b"X-Content-Type-Options", b"nosniff"),
            (b"Cross-Origin-Resource-Policy", b"same-origin"),
        )
        return Respond(200, headers, self.content)


def _read(name: str, kind: bytes) -> _Asset:
    content = files("codehub.proxy.pages").joinpath("assets", name).read_bytes()
    return _Asset(kind, content, hashlib.blake2b(content, digest_size=8).hexdigest())


_SCRIPT: Final = b"text/javascript; charset=utf-8"
_ASSETS: Final[Mapping[str, _Asset]] = {
    "page.css": _read("page.css", b"text/css; charset=utf-8"),
    "page.js": _read("page.js", _SCRIPT),
    "editor.js": _read("editor.js", _SCRIPT),
    "signin.js": _read("signin.js", _SCRIPT),
    "local_path.js": _read("local_path.js", _SCRIPT),
    "ports.js": _read("ports.js", _SCRIPT),
    "icon.svg": _read("icon.svg", b"image/svg+xml"),
}
_EMBLEMS: Final = _read("emblems.svg", b"image/svg+xml").content.decode()
_BY_NAME: Final[Mapping[bytes, tuple[_Asset, bytes]]] = {
    **{name.encode(): (asset, b"no-cache") for name, asset in _ASSETS.items()},
    **{
        _versioned.encode(): (asset, b"public, max-age=31536000, immutable")
        for name, asset in _ASSETS.items()
        if (_versioned := f"{name.partition('.')[0]}.{asset.mark}.{name.partition('.')[2]}")
    },
}


def asset(name: bytes, if_none_match: bytes | None = None) -> Respond | None:
    """The answer with an asset. `name`: what stands behind `{prefix}_codehub/`, without its query. None: there is no
    such asset."""
    found = _BY_NAME.get(name)
    if found is None:
        return None
    answer = found[0].respond(found[1])
    tags = [tag.strip().removeprefix(b"W/") for tag in (if_none_match or b"").split(b",")]
    if b'"%b"' % found[0].mark.encode() in tags:
        return Respond(304, answer.headers[1:3])
    return answer


def _address(name: str, prefix: str) -> str:
    stem, _, kind = name.partition(".")
    return escape(f"{prefix}{RESERVED.decode()}{stem}.{_ASSETS[name].mark}.{kind}")


# ── answers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def answer(view: PageModel, accept: bytes | None, language: Language, prefix: bytes = b"/") -> Respond:
    """The answer to a client: a page if it accepts one. Anything else (a script, an image, curl) must not take a page
    for what it wanted: it gets a problem, with a failing status even while the workspace is merely on its way."""
    if accept is not None and b"text/html" in accept.lower():
        return page(view, language, prefix)
    status = view.status if view.status >= 400 else 503
    said = problem(status, " ".join(part for part in (view.text, view.detail) if part), code_of(view))
    headers = (*said.headers, (b"Vary", b"Accept, Accept-Language"))
    if status in _RETRY_AFTER:
        headers = (*headers, (b"Retry-After", b"2" if view.status < 400 else _RETRY_AFTER[status]))
    return Respond(said.status, headers, said.body)


def code_of(view: PageModel) -> str:
    return _CODES.get(view.name, view.name)


def state(view: PageModel, status: int = 200) -> Respond:
    """The answer for the page that is open: its new model, and the version to ask for changes with."""
    return _json_answer(status, {**view.to_json(), "version": view.version})


def _json_answer(status: int, content: Mapping[str, object]) -> Respond:
    headers = (
        (b"Content-Type", b"application/json"),
        (b"Cache-Control", b"no-store"),
        (b"X-Content-Type-Options", b"nosniff"),
    )
    return Respond(status, headers, json.dumps(content).encode() + b"\n")


def editor_version(workspace: Workspace) -> str:
    """Differs between two states of a workspace that an open editor must tell apart."""
    return f"{_editor_phase(workspace)}-{workspace.home.ready_instance or ''}"


def _editor_phase(workspace: Workspace) -> str:
    if access_to(workspace).action is AccessAction.FORWARD:
        return "running"
    return "stopping" if workspace.phase is Phase.RUNNING else "asleep"


def editor_state(workspace: Workspace, forecast: StopForecast, view: PageModel, dashboard: str) -> Respond:
    """The answer for an editor that is open. `run`: which of the workspace's runs it is; an editor of another run
    cannot go on. `phase`: running, stopping (files can still be saved) or asleep. `stops_in`: seconds until it stops
    by itself. `dashboard`: the address of the workspace's own page there."""
    content = {
        "version": editor_version(workspace),
        "id": str(workspace.id),
        "name": workspace.name,
        "phase": _editor_phase(workspace),
        "run": workspace.home.ready_instance,
        "stops_in": forecast.seconds,
        "reason": forecast.reason,
        "warnings": forecast.warnings,
        "title": view.title,
        "text": view.text,
        "dashboard": dashboard,
    }
    return _json_answer(200, content)


def page(view: PageModel, language: Language, prefix: bytes = b"/") -> Respond:
    base = prefix.decode("latin-1")
    content = {**view.to_json(), "version": view.version}
    sentences = {key.partition(".")[2]: text for key, text in SENTENCES[language].items() if key.startswith("page.")}
    sentences["again"] = say(language, "action.again")
    main = f"""<main class="card" id="page" data-emblem="{view.emblem}" data-base="{_text(base + RESERVED.decode())}"
 data-view="{_json(content)}" data-texts="{_json(sentences)}">
{_EMBLEMS}
<h1 id="title" tabindex="-1">{_text(view.title)}</h1>
<p id="text">{_text(view.text)}</p>
<ol id="steps" aria-label="{_text(say(language, "page.steps"))}"{_hidden(view.steps)}>{_steps(view)}</ol>
<div id="bar"{_hidden(view.progress)}>{_bar(view, language)}</div>
<p id="detail"{_hidden(view.detail)}>{_text(view.detail)}</p>
<figure id="report"{_hidden(view.report)}><figcaption>{_text(say(language, "error.report"))}</figcaption>\
<blockquote>{_text(view.report)}</blockquote></figure>
<div id="actions"{_hidden(view.actions)}>{"".join(_action(action) for action in view.actions)}</div>
<p id="note" role="alert" hidden></p>
<p id="spoken" class="unseen" role="status" aria-live="polite"></p>
<noscript><p class="note">{_text(say(language, "page.noscript"))}</p></noscript>
</main>"""
    headers = (*_PAGE_HEADERS, (b"CodeHub-Page", view.name.encode()))
    script = None if view.inert else "page.js"
    return Respond(view.status, headers, _document(view.title, main, script, language, base))


def sign_in_page(
    language: Language, provider: str | None = None, prefix: bytes = b"/", *, has_hosts: bool = False
) -> Respond:
    """The sign-in page. `provider`: the OpenID provider's name, if there is one to sign in with. `has_hosts`:
    workspaces have hosts of their own, so that nothing leads from here to one below `/w/`."""
    base = prefix.decode("latin-1")
    sentences = {key.partition(".")[2]: text for key, text in SENTENCES[language].items() if key.startswith("signin.")}
    say_here = {key: _text(text) for key, text in sentences.items()}
    elsewhere = ""
    if provider:
        label = _text(say(language, "signin.provider", provider=provider))
        elsewhere = f"""<p class="or">{say_here["or"]}</p>
<a class="button secondary" id="provider" href="{_text(base)}api/v1/session/oidc">{label}</a>"""
    main = f"""<main class="card" id="signin" data-emblem="key" data-root="{_text(base)}"
 data-hosts="{_json(has_hosts)}" data-texts="{_json(sentences)}">
{_EMBLEMS}
<h1>{say_here["title"]}</h1>
<p id="text">{say_here["text"]}</p>
<p id="note" role="alert" tabindex="-1" hidden></p>
<form id="form" method="post" action="{_text(base)}api/v1/session" novalidate>
<label for="username">{say_here["username"]}</label>
<input id="username" name="username" type="text" autocomplete="username" autocapitalize="none" autocorrect="off"
 spellcheck="false" maxlength="1024" required autofocus>
<label for="password">{say_here["password"]}</label>
<div class="secret">
<input id="password" name="password" type="password" autocomplete="current-password" autocapitalize="none"
 autocorrect="off" spellcheck="false" maxlength="4096" required aria-describedby="caps">
<button type="button" id="show" aria-pressed="false" aria-label="{say_here["show"]}" aria-controls="password">\
<svg viewBox="0 0 24 24" aria-hidden="true">\
<path d="M2.5 12S6 5.5 12 5.5 21.5 12 21.5 12 18 18.5 12 18.5 2.5 12 2.5 12Z"/>\
<circle cx="12" cy="12" r="2.8"/><path class="stroke" d="M4 4l16 16"/></svg></button>
</div>
<p id="caps" class="hint" role="status" hidden>{say_here["caps"]}</p>
<button type="submit" class="button primary" id="submit">{say_here["submit"]}</button>
</form>
{elsewhere}
<noscript><p class="note">{_text(say(language, "page.noscript"))}</p></noscript>
</main>"""
    return Respond(200, _PAGE_HEADERS, _document(sentences["title"], main, "signin.js", language, base))


def ports_page(joins: Mapping[str, str], to: str, language: Language) -> Respond:
    """A page that fetches each address of `joins`, which are by origin, and goes on to `to`."""
    title = say(language, "ports.title")
    main = f"""<main class="card" id="ports" data-emblem="busy" data-to="{_text(to)}"
 data-joins="{_json(list(joins.values()))}">
{_EMBLEMS}
<h1>{_text(title)}</h1>
<p id="text">{_text(say(language, "ports.text"))}</p>
<noscript><p class="note">{_text(say(language, "page.noscript"))}</p></noscript>
</main>"""
    policy = POLICY.replace(b"connect-src 'self'", b"connect-src " + " ".join(joins).encode())
    headers = [(name, policy if name == b"Content-Security-Policy" else value) for name, value in _PAGE_HEADERS]
    return Respond(200, tuple(headers), _document(title, main, "ports.js", language, "/"))


# ── pieces ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _document(title: str, main: str, script: str | None, language: Language, prefix: str) -> bytes:
    module = f'<script type="module" src="{_address(script, prefix)}"></script>\n' if script else ""
    return f"""<!doctype html>
<html lang="{language}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{_text(title)} · CodeHub</title>
<link rel="icon" type="image/svg+xml" href="{_address("icon.svg", prefix)}">
<link rel="stylesheet" href="{_address("page.css", prefix)}">
{module}</head>
<body>
<header><img src="{_address("icon.svg", prefix)}" alt="" width="28" height="28"><span>CodeHub</span></header>
{main}
</body>
</html>
""".encode(errors="replace")


def _text(text: str) -> str:
    return escape(text, quote=True)


def _json(value: object) -> str:
    return _text(json.dumps(value, ensure_ascii=False))


def _hidden(value: object) -> str:
    return "" if value else " hidden"


def _steps(view: PageModel) -> str:
    return "".join(
        f'<li data-reached="{step.reached}"{_current(step.reached)}>{_text(step.label)}</li>' for step in view.steps
    )


def _current(reached: StepState) -> str:
    return ' aria-current="step"' if reached is StepState.NOW else ""


def _bar(view: PageModel, language: Language) -> str:
    bar = view.progress
    value = f' value="{bar.fraction:.4f}"' if bar and bar.fraction is not None else ""
    label = _text(say(language, "page.progress"))
    return f'<progress max="1"{value} aria-label="{label}"></progress><p>{_text(bar.text) if bar else ""}</p>'


def _action(action: Action) -> str:
    attributes = f'class="button {action.kind}" data-action="{_text(action.id)}"'
    if action.link is not None:
        return f'<a {attributes} href="{_text(action.link)}">{_text(action.label)}</a>'
    return f'<button type="button" {attributes}>{_text(action.label)}</button>'
