"""The web console on the HTTP gate, under `/console`.

It is two tables (`penstock.console.table`): pages, and actions that change something. All of it works without
JavaScript: links, and forms with GET and POST. Scripts only refresh parts of pages and draw charts.

**A page** is one row of `PAGES`: path, title, template, handler, the right it needs, its place in the navigation. The
handler is `async def page(visit: Visit) -> dict`; the dict goes to the template. It asks the engine only by `await
visit.ask(Request(…), Reply)`, which checks rights and limits. `visit.one("name")` and `visit.number("from", 1)` read
the query. Long work on events belongs in a worker: pass a function of a module as `present` of `visit.ask`, or to
`visit.run` one that reads the store itself, as those of `penstock.console.jobs`. A handler may return a `Response`
instead, such as a download or a stream of events; what it cannot answer it refuses with `Refused(status, sentence,
advice)`. Modules that take long to import (DuckDB, Arrow, Spark) are imported inside the handler.

**A template** extends `base.html` and fills `{% block content %}`. The macros of `macros.html` are `ui`: badges,
pagers, crumbs, empty states, forms, tables of events, trees and charts. Every text that a template prints is escaped
for HTML, and characters that hide or turn text become visible. Where the exact text matters, as in the value of a
field, write `{{ name|exact }}`. Links are made by `url("/browse/stream", context=…)`, static files by
`static("console.css")`. No `style` attributes, no inline scripts: the policy of the pages forbids both.

**A part that refreshes** is a block in an element with the attributes of the macro `ui.live`:

    <div {{ ui.live(visit, "store", 2) }}>{% block store %}…{% endblock %}</div>

The script asks for the same URL with `part=store`, and the server renders only that block, from the handler's dict:
what a template sets outside of the block is not there. `visit.part` tells the handler what it may leave out. Nothing
refreshes while the tab is hidden, the reader has paused it, or the keyboard's focus is in it.

**A live chart** is `{{ ui.chart("Appended", series, ("events",), "events per second") }}` on a page whose block
`scripts` loads uPlot: a sparkline drawn by the server, which the script replaces by a chart. Its series are those of
`penstock.console.samples.SERIES`.

**An action** is one row of `ACTIONS`: path, the page that it belongs to, handler, the right, and which field of the
form has to be typed to confirm it. `async def action(visit: Visit) -> str` reads `visit.field("name")`, asks the
engine, and returns the sentence that the next page shows. The browser is then sent back to where the form was (303),
or to `visit.left`. If the handler raises an error, the page is shown again with its sentence. The form is made by the
macro `ui.action_form`, which adds the CSRF token, where to go back to, and the field for what has to be typed:

    {{ ui.action_form(visit, "/queues/delete", "Delete", {"context": c, "queue": q}, confirm="queue", danger=true) }}

A page with `posts=True` answers forms itself, at its own path: for what is too long or too private for an address, and
for what is shown only once. Its handler finds `visit.form` filled.

A handler whose change is no request of the engine records it in the audit with `await visit.record(…)`.
"""

from penstock.console.app import Console

__all__ = ["Console"]
