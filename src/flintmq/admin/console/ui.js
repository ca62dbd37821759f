// Parts that pages are made of. Every value is a text node: nothing here, or in a page, makes markup of a text.
import { h, render, Fragment, createContext } from "./vendor/preact.js";
import { useState, useEffect, useRef, useMemo, useCallback, useContext } from "./vendor/hooks.js";
import htm from "./vendor/htm.js";
import { get } from "./api.js";

export { h, render, Fragment, useState, useEffect, useRef, useMemo, useCallback, useContext };
export const html = htm.bind(h);
export const App = createContext(null);

export const text = (value) => (value === null || value === undefined ? "" : typeof value === "object" ? JSON.stringify(value) : String(value));
const grouped = new Intl.NumberFormat("en");
export const count = (value) => (typeof value === "number" ? grouped.format(value) : "–");
export function short(value) {
  if (typeof value !== "number") return "–";
  for (const [size, sign] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) if (Math.abs(value) >= size) return (value / (sign === "k" ? 1e3 : size)).toFixed(1) + sign;
  return grouped.format(Math.round(value * 10) / 10);
}
export function bytes(value) {
  if (typeof value !== "number") return "–";
  let at = 0;
  while (value >= 1024 && at < 4) { value /= 1024; at++; }
  return (at ? value.toFixed(1) : value) + " " + ["B", "KiB", "MiB", "GiB", "TiB"][at];
}
export const rate = (value) => (typeof value === "number" ? short(value) + "/s" : "–");
// A rate of RabbitMQ's API: 0 of the first look says nothing yet. looks: answers that the page has had.
export const rateOf = (value, looks) => (value || looks > 1 ? rate(value) : "–");
export const many = (value, thing) => `${count(value)} ${thing}${value === 1 ? "" : "s"}`;

// The page, its names and its parameters: all in the address, so that a reload, a link and the way back show the same.
export function place() {
  const [way, query = ""] = location.hash.slice(2).split("?");
  const parts = way.split("/").map((one) => { try { return decodeURIComponent(one); } catch { return one; } });
  return { page: parts[0] || "overview", names: parts.slice(1), query: new URLSearchParams(query) };
}

// Parameters of the address. [values, change(some, typed)]; typed: each letter is no step of the way back. A value as in `defaults` is left out.
export function useQuery(defaults) {
  const way = useRef(location.hash.split("?")[0]);
  const read = () => { const { query } = place(); return Object.fromEntries(Object.entries(defaults).map(([key, value]) => [key, query.has(key) ? query.get(key) : value])); };
  const [values, set] = useState(read);
  useEffect(() => {
    const moved = () => { if (location.hash.split("?")[0] === way.current) set(read()); };
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  const change = (some, typed) => {
    const next = { ...read(), ...some }, query = new URLSearchParams(Object.entries(next).filter(([key, value]) => String(value) !== defaults[key]));
    history[typed ? "replaceState" : "pushState"](null, "", way.current + (query.size ? "?" + query : ""));
    set(read());
  };
  return [values, change];
}

// Page, filter and order of a list of RabbitMQ's API. url: with its parameters; sort, onSort: of Table; filter: a field for the head.
export function useList(base, size = 50) {
  const [values, change] = useQuery({ page: "1", name: "", sort: "", down: "" });
  const page = /^[1-9]\d{0,6}$/.test(values.page) ? Number(values.page) : 1;
  const order = values.sort ? `&sort=${encodeURIComponent(values.sort)}&sort_reverse=${values.down === "1"}` : "";
  return {
    page, name: values.name, go: (next) => change({ page: String(next) }), sort: [values.sort, values.down === "1"], url: `${base}?page=${page}&page_size=${size}&name=${encodeURIComponent(values.name)}${order}`,
    onSort: ([key, down]) => change({ sort: key, down: down ? "1" : "", page: "1" }), first: () => { if (page > 1) change({ page: "1" }, true); },
    filter: html`<input type="search" aria-label="Filter by name" placeholder="Filter by name ( / )" value=${values.name} onInput=${(event) => change({ name: event.target.value, page: "1" }, true)} />`,
  };
}

// A page that is gone (rows were deleted, or a filter was narrowed) becomes the first one.
export function usePage(list, every) {
  const polled = usePoll(list.url, every);
  useEffect(() => { if (polled[1] && polled[1].word === "page_out_of_range") list.first(); }, [polled[1]]);
  return polled;
}
export function age(seconds) {
  if (seconds < 90) return Math.round(seconds) + " s";
  if (seconds < 5400) return Math.round(seconds / 60) + " min";
  if (seconds < 129600) return Math.round(seconds / 3600) + " h";
  return Math.round(seconds / 86400) + " d";
}

// Looks again each `every` ms while the page is seen. [value, error, again, looks]; looks: answers so far, those of the same
// second as one: the broker takes rates between looks that are a second apart
export function usePoll(url, every = 5000) {
  const [state, set] = useState([null, null]), looks = useRef(0), counted = useRef(-1000);
  const [round, again] = useState(0);
  useEffect(() => {
    if (!url) return;
    const stop = new AbortController();
    let timer = 0;
    const look = async () => {
      if (!document.hidden) {
        try { const value = await get(url, stop.signal); if (performance.now() - counted.current >= 1000) { looks.current++; counted.current = performance.now(); } set([value, null]); }
        catch (error) { if (!stop.signal.aborted) set(([before]) => [before, error]); }
      }
      if (!stop.signal.aborted && every) timer = setTimeout(look, every);
    };
    look();
    return () => { stop.abort(); clearTimeout(timer); };
  }, [url, every, round]);
  return [...state, () => again((before) => before + 1), looks.current];
}

export function Trouble({ error }) {
  return error ? html`<div class="trouble" role="alert"><strong>${error.message}</strong>${error.fix ? html` <span>${error.fix}</span>` : null}</div>` : null;
}

export function Head({ title, sub, children }) {
  useEffect(() => { document.title = `${title} · FlintMQ`; }, [title]);
  return html`<header class="head"><div><h1 tabindex="-1">${title}</h1>${sub ? html`<p class="sub">${sub}</p>` : null}</div><div class="tools">${children}</div></header>`;
}

export const Badge = ({ kind = "", children }) => html`<span class=${"badge " + kind}>${children}</span>`;
export function Card({ title, children, tools, wide }) {
  return html`<section class=${"card" + (wide ? " wide" : "")}>${title ? html`<div class="cardhead"><h2>${title}</h2>${tools || null}</div>` : null}${children}</section>`;
}
export const Tile = ({ label, value, note, kind = "", children }) =>
  html`<div class=${"tile " + kind}><div class="label">${label}</div><div class="value">${value}</div>${note ? html`<div class="note">${note}</div>` : null}${children}</div>`;
export const Empty = ({ children }) => html`<p class="empty">${children}</p>`;
export const Link = ({ to, children, ...more }) => html`<a href=${"#" + to} ...${more}>${children}</a>`;
export function Facts({ rows }) {
  return html`<dl class="facts">${rows.filter(Boolean).map(([label, value]) => html`<div><dt>${label}</dt><dd>${typeof value === "object" && value && value.type === undefined && !Array.isArray(value) ? text(value) : value}</dd></div>`)}</dl>`;
}

// columns: {key, label, show(row), num, sort}; sort: [key, down]
export function Table({ caption, columns, rows, sort, onSort, empty = "Nothing here." }) {
  if (!rows) return html`<p class="empty" aria-busy="true">Looking …</p>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${caption}><table>
    <caption class="quiet">${caption}</caption>
    <thead><tr>${columns.map((one) => {
      const on = sort && sort[0] === one.sort;
      return html`<th scope="col" class=${one.num ? "num" : ""} aria-sort=${on ? (sort[1] ? "descending" : "ascending") : undefined}>
        ${one.sort && onSort ? html`<button class="plain" onClick=${() => onSort([one.sort, on ? !sort[1] : !!one.num])}>${one.label}${on ? (sort[1] ? " ↓" : " ↑") : ""}</button>` : one.label}</th>`;
    })}</tr></thead>
    <tbody>${rows.map((row, at) => html`<tr key=${row.key || at}>${columns.map((one) => html`<td class=${one.num ? "num" : ""}>${one.show ? one.show(row) : text(row[one.key])}</td>`)}</tr>`)}</tbody>
  </table>${rows.length ? null : html`<${Empty}>${empty}<//>`}</div>`;
}

export function Pager({ page, pages, total, filtered, go }) {
  return html`<nav class="pager" aria-label="Pages">
    <button disabled=${page <= 1} onClick=${() => go(page - 1)}>Previous</button>
    <span>Page ${page} of ${Math.max(pages, 1)}${filtered !== undefined ? ` · ${count(filtered)}${filtered !== total ? ` of ${count(total)}` : ""}` : ""}</span>
    <button disabled=${page >= pages} onClick=${() => go(page + 1)}>Next</button></nav>`;
}

export function Command({ children }) {
  const [done, set] = useState(false);
  const line = text(children);
  const secret = line.startsWith("flintmq") ? "The password of your user is read from FLINTMQ_PASSWORD." : "";
  const copy = async () => {
    try { await navigator.clipboard.writeText(line); set(true); setTimeout(() => set(false), 1500); } catch { set(false); }
  };
  return html`<div class="command" title=${secret}><code tabindex="0">${line}</code><button type="button" onClick=${copy} aria-label="Copy the command">${done ? "Copied" : "Copy"}</button></div>`;
}

// A window over the page: the browser keeps the keyboard inside, and Escape closes it.
export function Dialog({ title, close, children, wide }) {
  const ref = useRef(null);
  useEffect(() => { const one = ref.current; one.showModal(); return () => one.open && one.close(); }, []);
  return html`<dialog ref=${ref} class=${wide ? "wide" : ""} onCancel=${(event) => { event.preventDefault(); close(); }} aria-label=${title}>
    <div class="cardhead"><h2>${title}</h2><button type="button" class="plain" onClick=${close} aria-label="Close the window">✕</button></div>${children}</dialog>`;
}

// Asks before something that can't be taken back. `word`: has to be typed; children: a reason's field, or text.
export function Confirm({ title, children, word, action, doIt, close, commands = [] }) {
  const [typed, set] = useState("");
  const [error, fail] = useState(null);
  const [busy, work] = useState(false);
  const submit = async (event) => {
    event.preventDefault();
    work(true);
    try { await doIt(); close(); } catch (error) { fail(error); work(false); }
  };
  return html`<${Dialog} title=${title} close=${close}><form onSubmit=${submit}>
    <div class="ask">${children}</div>
    ${word ? html`<label>Type <b>${word}</b> to go on<input value=${typed} onInput=${(event) => set(event.target.value)} autocomplete="off" /></label>` : null}
    <${Trouble} error=${error} />
    ${commands.map((one) => html`<${Command}>${one}<//>`)}
    <div class="buttons"><button type="button" onClick=${close}>Cancel</button><button class="danger" disabled=${busy || (word && typed !== word)}>${action}</button></div>
  </form><//>`;
}

// A button for a change: off for who may only look.
export function Change({ onClick, children, kind = "", title }) {
  const app = useContext(App);
  const off = app.locked;
  return html`<button type="button" class=${kind} disabled=${off} title=${off ? app.lockedBy : title} onClick=${onClick}>${children}</button>`;
}

export const parsed = (text) => { try { const value = JSON.parse(text || "{}"); return value && typeof value === "object" && !Array.isArray(value) ? value : null; } catch { return null; } };

export function Field({ label, hint, children }) {
  return html`<label class="field"><span>${label}</span>${children}${hint ? html`<small>${hint}</small>` : null}</label>`;
}

// --- charts: uPlot, loaded when the first one is shown
let plot = null;
const clock = (one) => { const long = one.scales.x.max - one.scales.x.min > 900; return (at) => new Date(at * 1000).toLocaleTimeString([], long ? { hour: "2-digit", minute: "2-digit", hour12: false } : { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false }); };
// Ends of an axis, from its first and last sample (null: there is none): a minute at least, which ends now when nothing was sampled.
export const minute = (low, high) => { const end = high > 0 ? high : Date.now() / 1000; return [Math.min(low > 0 ? low : end, end - 60), end]; };
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
export function Chart({ title, series, times, unit = short, height = 150 }) {
  const box = useRef(null), made = useRef(null);
  const app = useContext(App);
  const names = series.map((one) => one.label).join("|");
  useEffect(() => {
    let gone = false, watch = null;
    (async () => {
      if (!plot) { // its style, too, is asked for when there is a chart: the first page does not wait for it
        if (!document.querySelector("link[href='vendor/uplot.css']")) document.head.append(Object.assign(document.createElement("link"), { rel: "stylesheet", href: "vendor/uplot.css" }));
        plot = (await import("./vendor/uplot.js")).default;
      }
      if (gone || !box.current) return;
      const grid = { stroke: color("--line"), width: 1 }, ink = color("--muted");
      const options = {
        width: box.current.clientWidth || 300, height, legend: { show: false }, cursor: { y: false, points: { size: 6 } }, padding: [8, 6, 0, 0],
        axes: [{ stroke: ink, grid: { show: false }, ticks: { show: false }, font: "11px system-ui", size: 26, space: 90, values: (one, all) => all.map(clock(one)) },
               { stroke: ink, grid, ticks: { show: false }, font: "11px system-ui", size: 62, values: (_, all) => all.map(unit) }],
        scales: { x: { range: (_, low, high) => minute(low, high) }, y: { range: (_, low, high) => [Math.min(0, low), Math.max(high * 1.1, 1)] } },
        series: [{}, ...series.map((one) => ({ label: one.label, stroke: color(one.color), width: 2, fill: color(one.color) + "22", points: { show: false } }))],
        hooks: { setCursor: [(one) => { const at = one.cursor.idx; if (made.current) made.current.tell(at); }] },
      };
      const one = new plot(options, data(), box.current);
      made.current = Object.assign(one, { tell: (at) => say(at) });
      watch = new ResizeObserver(() => { if (box.current) one.setSize({ width: box.current.clientWidth, height }); });
      watch.observe(box.current);
    })();
    return () => { gone = true; if (watch) watch.disconnect(); if (made.current) made.current.destroy(); made.current = null; };
  }, [names, app && app.theme]);
  // fewer than two samples: uPlot would make a day of one, so a minute without values stands before it
  const data = () => {
    const seen = times[0] > 0, last = seen ? times[times.length - 1] : Date.now() / 1000, few = !seen || times.length < 2;
    return [few ? [last - 60, last] : times, ...series.map((one) => (few ? [null, seen && one.values.length ? one.values[one.values.length - 1] : null] : one.values.length ? one.values : times.map(() => null)))];
  };
  const [at, say] = useState(null);
  useEffect(() => { if (made.current) made.current.setData(data()); });
  const shown = (one) => one.values[at !== null && at !== undefined && at < one.values.length ? at : one.values.length - 1];
  return html`<figure class="chart"><figcaption><b>${title}</b>${series.map((one) => html`<span class="key"><i class=${"dot " + one.color.slice(2)}></i>${one.label} <b>${unit(shown(one))}</b></span>`)}</figcaption>
    <div ref=${box} class="plot" role="img" aria-label=${`${title}: ${series.map((one) => `${one.label} ${unit(one.values[one.values.length - 1])}`).join(", ")}`}></div></figure>`;
}

// Samples of counters as columns for charts: levels as they are, counters as growth a second.
export function columns(found, levels, counters) {
  const samples = (found && found.samples) || {};
  const first = Object.values(samples)[0] || [];
  const times = first.map((_, at) => found.end_s - (first.length - 1 - at) * found.every_s);
  const value = { times };
  for (const one of levels) value[one] = samples[one] || [];
  for (const one of counters) value[one] = (samples[one] || []).map((now, at, all) => (at ? Math.max(0, (now - all[at - 1]) / found.every_s) : null));
  return value;
}

export function Spark({ values }) {
  const top = Math.max(1, ...values), size = values.length;
  if (size < 2) return null;
  const points = values.map((one, at) => `${((at / (size - 1)) * 100).toFixed(1)},${(24 - (one / top) * 22).toFixed(1)}`).join(" ");
  return html`<svg class="spark" viewBox="0 0 100 26" preserveAspectRatio="none" aria-hidden="true"><polyline points=${points} /></svg>`;
}
