// The live tail. All tabs of a browser share one connection: the tab that holds a lock has it, for the filters of all,
// and tells the others over a channel what comes. When it closes, the next one gets the lock and goes on behind the last
// event that it has heard of. Where there are no locks (a page that did not come over TLS), each visible tab has its own.
"use strict";

{
  const ROWS_MAX = 200;
  const CHARACTERS_MAX = 256 * 1024;
  const FILTERS_MAX = 8;
  const TELL_MS = 20_000;
  // Timers of hidden tabs are rare.
  const FORGET_MS = 180_000;
  const AGAIN_MS = 5_000;

  const place = document.getElementById("tail");
  const body = place.querySelector("tbody");
  const state = document.querySelector("[data-tail-state]");
  const pauseButton = document.querySelector("[data-tail-pause]");
  const skippedText = document.querySelector("[data-tail-skipped]");
  const emptyText = document.querySelector("[data-tail-empty]");
  const name = `penstock-tail-${place.dataset.scope}`;
  const me = crypto.getRandomValues(new Uint32Array(4)).join("-");
  const mine = place.dataset.filter;

  let last = place.dataset.last;
  let isPaused = false;
  let pending = [];
  let skipped = 0;
  let dropped = 0;
  let drawing = 0;

  // --- what the page shows -------------------------------------------------------------------------------------------

  const positionOf = (id) => Number(id.slice(id.lastIndexOf(".") + 1));

  function say(text, kind) {
    const shown = isPaused ? "Paused" : text;
    state.dataset.text = text;
    state.dataset.kind = kind;
    if (state.textContent !== shown) state.textContent = shown;
    state.className = `badge ${isPaused ? "note" : kind}`;
  }

  function sayPending() {
    pauseButton.textContent = isPaused ? `Resume${pending.length ? ` (${pending.length.toLocaleString("en")} new)` : ""}` : "Pause";
    skippedText.hidden = !(skipped || dropped);
    skippedText.textContent = [
      skipped ? `${skipped.toLocaleString("en")} positions were skipped because more came than a page can show.` : "",
      dropped ? `${dropped.toLocaleString("en")} events came and went while this page was paused or hidden.` : "",
    ].filter(Boolean).join(" ");
  }

  function sizeText(size) {
    if (size < 1024) return `${size.toLocaleString("en")} bytes`;
    let unit = -1;
    for (; size >= 1024; size /= 1024) unit += 1;
    return `${size.toFixed(1)} ${["KiB", "MiB", "GiB"][unit]}`;
  }

  function element(tag, className, ...children) {
    const made = document.createElement(tag);
    made.className = className;
    made.append(...children);
    return made;
  }

  function link(href, text) {
    const made = element("a", "", text);
    made.href = href;
    return made;
  }

  function rowOf(one) {
    const row = element("tr", "");
    const head = element("th", "number", link(`${place.dataset.event}?position=${one.at}`, one.at.toLocaleString("en")));
    head.scope = "row";
    const time = element("time", "", one.time.replace("T", " "));
    time.dateTime = `${one.time}Z`;
    const excerpt = one.size === 0 ? element("i", "", "empty") : one.excerpt === null ? element("i", "", "bytes") : element("code", "", one.excerpt);
    row.append(
      head, element("td", "name", link(`${place.dataset.stream}?${one.query}`, one.stream)), element("td", "name", one.type),
      element("td", "when", time), element("td", "number", sizeText(one.size)), element("td", "excerpt", excerpt),
    );
    return row;
  }

  function showEmpty() {
    place.hidden = !body.rows.length;
    emptyText.hidden = !place.hidden;
  }

  function draw() {
    drawing = 0;
    if (isPaused) return;
    const made = document.createDocumentFragment();
    for (const one of pending) made.prepend(rowOf(one));
    pending = [];
    // What the reader uses stays where it is.
    const above = body.getBoundingClientRect().top < 0 ? document.documentElement.scrollHeight : 0;
    body.prepend(made);
    let characters = 0;
    let count = 0;
    for (const row of [...body.rows]) {
      characters += row.textContent.length;
      count += 1;
      if ((count > ROWS_MAX || characters > CHARACTERS_MAX) && !row.contains(document.activeElement)) row.remove();
    }
    if (above) scrollBy(0, document.documentElement.scrollHeight - above);
    showEmpty();
    decorate(body);
    sayPending();
  }

  function take(rows) {
    const seen = positionOf(last);
    for (const one of rows) if (one.at > seen && one.keys.includes(mine)) pending.push(one);
    if (pending.length > ROWS_MAX) {
      dropped += pending.length - ROWS_MAX;
      pending = pending.slice(-ROWS_MAX);
    }
    if (isPaused || document.hidden) sayPending();
    if (!isPaused && !drawing) drawing = requestAnimationFrame(draw);
  }

  // What the tab hears, from its own connection or from that of another tab, which may not have its filter yet.
  function hear(message) {
    const isFollowed = message.keys.includes(mine);
    if (message.kind === "over") location.reload();
    if (message.kind === "state") {
      const isLeftOut = message.keys.length === FILTERS_MAX && !isFollowed;
      say(isLeftOut ? `Only ${FILTERS_MAX} filters at a time: close a tab` : message.text, isLeftOut ? "warning" : message.level);
    }
    if (!isFollowed || !message.id || positionOf(message.id) <= positionOf(last)) return;
    if (message.kind === "rows") take(message.rows);
    if (message.kind === "skipped") {
      skipped += message.positions;
      sayPending();
    }
    last = message.id;
  }

  // --- the connection ------------------------------------------------------------------------------------------------

  const channel = navigator.locks ? new BroadcastChannel(name) : null;
  const wants = new Map([[me, { key: mine, last, at: Infinity }]]);
  let source = null;
  let keys = [];
  let isLeader = false;
  let again = 0;
  let status = { text: "Connecting", level: "plain" };

  function tell(message) {
    const told = { ...message, keys };
    channel?.postMessage(told);
    hear(told);
  }

  function tellState(text, level) {
    status = { text, level };
    tell({ kind: "state", ...status });
  }

  function wanted() {
    const now = Date.now();
    for (const [tab, want] of wants) if (now - want.at > FORGET_MS) wants.delete(tab);
    return [...new Set([...wants.values()].map((want) => want.key))].sort().slice(0, FILTERS_MAX);
  }

  // Connects for the filters of all tabs, unless it is connected for them.
  function connect(isForced = false) {
    const needed = wanted();
    if (!isForced && source && needed.join("\n") === keys.join("\n")) return;
    clearTimeout(again);
    source?.close();
    // Tabs whose filter is new here may have heard less.
    const lasts = [last, ...[...wants.values()].filter((want) => !keys.includes(want.key)).map((want) => want.last)];
    const after = lasts.reduce((low, one) => (positionOf(one) < positionOf(low) ? one : low));
    keys = needed;
    const query = new URLSearchParams([["after", after], ...keys.map((key) => ["filter", key])]);
    const url = `${place.dataset.events}?${query}`;
    const filters = keys;
    source = new EventSource(url);
    source.addEventListener("open", () => tellState("Live", "good"));
    source.addEventListener("rows", (event) => {
      const rows = JSON.parse(event.data).map((row) => ({ ...row, keys: row.for.map((number) => filters[number]) }));
      tell({ kind: "rows", rows, id: event.lastEventId });
    });
    source.addEventListener("skipped", (event) => tell({ kind: "skipped", positions: Number(event.data), id: event.lastEventId }));
    source.addEventListener("at", (event) => tell({ kind: "at", id: event.lastEventId }));
    source.addEventListener("over", () => { disconnect(); tell({ kind: "over" }); });
    source.addEventListener("error", () => {
      tellState("Connecting again", "warning");
      if (source?.readyState === EventSource.CLOSED) learnWhy(url);
    });
  }

  function disconnect() {
    clearTimeout(again);
    source?.close();
    source = null;
  }

  // A stream that is refused does not say why.
  async function learnWhy(url) {
    disconnect();
    const stop = new AbortController();
    try {
      const answer = await fetch(url, { headers: { "hx-request": "true" }, signal: stop.signal });
      if (answer.headers.has("hx-redirect")) return void tell({ kind: "over" });
      if (answer.ok) stop.abort();
      else {
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        tellState(page.querySelector(".lead")?.textContent || `The server answers ${answer.status}`, "error");
      }
    } catch { /* the server is away: try again below */ }
    again = setTimeout(() => connect(true), AGAIN_MS);
  }

  function lead() {
    isLeader = true;
    channel.postMessage({ kind: "who" });
    connect();
  }

  channel?.addEventListener("message", ({ data }) => {
    if (data.kind === "want") {
      wants.set(data.tab, { key: data.key, last: data.last, at: Date.now() });
      if (isLeader) {
        connect();
        channel.postMessage({ kind: "state", ...status, keys });
      }
    } else if (data.kind === "gone") {
      wants.delete(data.tab);
      if (isLeader) connect();
    } else if (data.kind === "who") want();
    else hear(data);
  });

  const want = () => channel.postMessage({ kind: "want", tab: me, key: mine, last });

  if (channel) {
    want();
    setInterval(want, TELL_MS);
    // Held until the tab is gone.
    navigator.locks.request(name, () => new Promise(lead));
    addEventListener("pagehide", () => { channel.postMessage({ kind: "gone", tab: me }); disconnect(); });
  } else {
    const follow = () => (document.hidden ? disconnect() : connect());
    document.addEventListener("visibilitychange", follow);
    addEventListener("pagehide", disconnect);
    follow();
  }
  addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });

  // --- what the reader does ------------------------------------------------------------------------------------------

  document.querySelector("[data-tail-tools]").hidden = false;
  pauseButton.addEventListener("click", () => {
    isPaused = !isPaused;
    pauseButton.setAttribute("aria-pressed", String(isPaused));
    say(state.dataset.text || "Connecting", state.dataset.kind || "plain");
    if (isPaused) sayPending();
    else draw();
  });
  document.querySelector("[data-tail-clear]").addEventListener("click", () => {
    body.replaceChildren();
    skipped = dropped = 0;
    pending = [];
    showEmpty();
    emptyText.querySelector("h2").textContent = "Cleared";
    sayPending();
  });
}
