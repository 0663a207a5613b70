// What scripts add to pages that work without them: refreshed parts, charts, local times, copying, the theme.
"use strict";

const root = document.documentElement;
const watched = () => !document.hidden && !paused;
let paused = false;

// --- the theme ---------------------------------------------------------------------------------------------------

const themeSwitch = document.querySelector("[data-theme-switch]");
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (root.dataset.theme || (prefersDark.matches ? "dark" : "light")) === "dark";

function showTheme() {
  if (themeSwitch) themeSwitch.textContent = isDark() ? "Light theme" : "Dark theme";
  charts.forEach((chart) => chart.build());
}

if (themeSwitch) {
  themeSwitch.hidden = false;
  themeSwitch.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("penstock-theme", root.dataset.theme); } catch { /* it holds for this page */ }
    showTheme();
  });
}
prefersDark.addEventListener("change", showTheme);

// --- refreshed parts ---------------------------------------------------------------------------------------------

const stale = document.getElementById("stale");

function isFresh(fresh) {
  if (stale) stale.hidden = fresh;
}

const refreshed = new WeakMap();

setInterval(() => {
  if (!watched()) return;
  const now = Date.now();
  for (const part of document.querySelectorAll("[data-live]")) {
    // A part is as old as its page when it is seen for the first time.
    if (!refreshed.has(part)) refreshed.set(part, now);
    if (now - refreshed.get(part) < 1000 * Number(part.dataset.live)) continue;
    // What the reader uses stays as it is.
    if (part.contains(document.activeElement) || part.querySelector("dialog[open]")) continue;
    refreshed.set(part, now);
    htmx.trigger(part, "refresh");
  }
}, 500);

document.body.addEventListener("htmx:afterSwap", (event) => { isFresh(true); decorate(event.target); });
document.body.addEventListener("htmx:responseError", () => isFresh(false));
document.body.addEventListener("htmx:sendError", () => isFresh(false));

for (const button of document.querySelectorAll("[data-pause]")) {
  button.hidden = false;
  button.addEventListener("click", () => {
    paused = !paused;
    button.setAttribute("aria-pressed", String(paused));
    button.textContent = paused ? "Resume updates" : "Pause updates";
  });
}

// --- times and copies --------------------------------------------------------------------------------------------

// What readers see of a time is where they are; the page itself has UTC.
const local = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });

function decorate(part) {
  for (const time of part.querySelectorAll("time[datetime]:not([title])")) {
    const moment = new Date(time.dateTime);
    if (Number.isNaN(moment.getTime())) continue;
    time.title = local.format(moment);
    if (time.closest("[data-local]")) {
      const text = document.createElement("span");
      text.className = "local";
      text.textContent = `${local.format(moment)} (here)`;
      time.after(text);
    }
  }
  for (const button of part.querySelectorAll("[data-copy-link][hidden], [data-copy-url][hidden], [data-copy-text][hidden]")) {
    if (!navigator.clipboard) continue;
    button.hidden = false;
    const label = button.textContent;
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(await copied(button.dataset));
        button.textContent = "Copied";
      } catch {
        button.textContent = "Could not copy";
      }
      setTimeout(() => { button.textContent = label; }, 1500);
    });
  }
}

// A text, the address of a page, or what the server answers at an address.
async function copied({ copyLink, copyUrl, copyText }) {
  if (copyText) return copyText;
  if (copyLink) return new URL(copyLink, location.href).href;
  const answer = await fetch(copyUrl);
  if (!answer.ok) throw new Error(String(answer.status));
  return answer.text();
}

// --- charts ------------------------------------------------------------------------------------------------------

const CHART_HEIGHT = 110;
const SAMPLES_MAX = 300;
const charts = [];
const samples = { time: [] };

const rate = (number) => number >= 10 || Number.isInteger(number)
  ? Math.round(number).toLocaleString("en") : number.toFixed(number < 1 ? 2 : 1);

const clock = (seconds) => new Date(1000 * seconds).toLocaleTimeString("en-GB");

class Chart {
  constructor(figure) {
    this.figure = figure;
    this.place = figure.querySelector(".plot");
    this.lasts = figure.querySelectorAll("[data-last]");
    this.names = figure.dataset.chart.split(" ");
    new ResizeObserver(() => this.plot?.setSize(this.size())).observe(this.place);
  }

  size() { return { width: Math.max(120, this.place.clientWidth), height: CHART_HEIGHT }; }

  data() { return [samples.time, ...this.names.map((name) => samples[name])]; }

  build() {
    if (samples.time.length < 2) return;
    this.plot?.destroy();
    this.place.replaceChildren();
    const color = (name) => getComputedStyle(root).getPropertyValue(name).trim();
    const axis = { stroke: color("--muted"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui", labelFont: "11px system-ui" };
    const lines = this.names.map((name, at) => ({
      stroke: color(at ? "--accent-2" : "--accent"), width: 1.5,
      fill: this.names.length === 1 ? color("--accent-soft") : undefined, points: { show: false },
    }));
    this.plot = new uPlot({
      ...this.size(),
      padding: [8, 26, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false } },
      scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.15 : 1] } },
      axes: [{ ...axis, size: 22, space: 90, values: (_, values) => values.map(clock) }, { ...axis, size: 46, space: 28, values: (_, values) => values.map(rate) }],
      series: [{}, ...lines],
    }, this.data(), this.place);
  }

  update() {
    this.names.forEach((name, at) => { this.lasts[at].textContent = rate(samples[name].at(-1)); });
    if (this.plot) this.plot.setData(this.data());
    else this.build();
  }
}

async function fetchSamples() {
  const since = samples.time.at(-1) || 0;
  const answer = await fetch(`${document.body.dataset.samples}?since=${since}`, { headers: { "hx-request": "true" } });
  if (answer.headers.has("hx-redirect")) location.assign(answer.headers.get("hx-redirect"));
  if (!answer.ok) throw new Error(String(answer.status));
  const found = await answer.json();
  for (const [name, values] of Object.entries(found)) {
    samples[name] = [...(samples[name] || []), ...values].slice(-SAMPLES_MAX);
  }
  if (found.time.length) charts.forEach((chart) => chart.update());
}

async function followSamples() {
  if (watched()) {
    try {
      await fetchSamples();
      isFresh(true);
    } catch {
      isFresh(false);
    }
  }
  setTimeout(followSamples, 1000);
}

if (typeof uPlot !== "undefined") {
  charts.push(...Array.from(document.querySelectorAll("[data-chart]"), (figure) => new Chart(figure)));
  if (charts.length) followSamples();
}

// On a phone the navigation is one line, and the page that is open may be far to the right.
// (scrollIntoView would also move where the tab key begins.)
const openPage = document.querySelector("nav.main [aria-current]");
if (openPage) {
  const line = openPage.closest("nav");
  line.scrollLeft = openPage.offsetLeft - (line.clientWidth - openPage.offsetWidth) / 2;
}
showTheme();
decorate(document);
