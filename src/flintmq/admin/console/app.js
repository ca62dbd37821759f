// The console: login, navigation, keys, the one event stream. Pages are modules that are loaded when they are opened.
import { html, render, useState, useEffect, useRef, App, Dialog, Link, Trouble, text, place } from "./ui.js";
import { get, login, logout, listen, onLost, setUser } from "./api.js";
import { setCommandUser } from "./commands.js";

const PAGES = [
  ["", [["overview", "Overview", "o"], ["diagnosis", "Diagnosis", "d"]]],
  ["Messages", [["queues", "Queues", "q"], ["streams", "Streams & groups", "s"], ["exchanges", "Exchanges", "e"], ["topology", "Topology", "t"], ["route", "Why unroutable?", "w"], ["schedules", "Scheduled", "y"]]],
  ["Other brokers", [["shovels", "Shovels", "v"], ["federation", "Federation", "f"]]],
  ["Clients", [["connections", "Connections", "c"], ["channels", "Channels", "h"]]],
  ["Pipelines", [["pipelines", "Spark pipelines", "p"], ["transactions", "Transactions", "x"]]],
  ["Broker", [["admin", "Admin", "a"], ["log", "Log & events", "l"], ["api", "API", "i"]]],
];
const KEYS = Object.fromEntries(PAGES.flatMap(([, all]) => all.map(([page, , key]) => [key, page])));
const MODULES = { queue: "queues", exchange: "exchanges", connection: "connections", transactions: "pipelines", diagnosis: "overview", api: "log", schedules: "moving", shovels: "moving", federation: "moving" };

function Login({ enter }) {
  const [user, setName] = useState(""), [password, setPassword] = useState(""), [error, fail] = useState(null), [busy, work] = useState(false);
  useEffect(() => { document.title = "Sign in · FlintMQ"; }, []);
  const submit = async (event) => {
    event.preventDefault();
    work(true); fail(null);
    try { await login(user, password); enter(await get("/api/v1/overview")); }
    catch (error) { fail(error.status === 403 ? Object.assign(error, { fix: "The user needs a tag: management, policymaker, monitoring or administrator." }) : error); work(false); }
  };
  return html`<main class="login"><div class="card"><form onSubmit=${submit}>
    <h1 class="brand"><img src="icon.svg" alt="" />FlintMQ</h1>
    <label><span>User</span><input autofocus required autocomplete="username" value=${user} onInput=${(event) => setName(event.target.value)} /></label>
    <label><span>Password</span><input type="password" required autocomplete="current-password" value=${password} onInput=${(event) => setPassword(event.target.value)} /></label>
    <${Trouble} error=${error} />
    <button class="main" disabled=${busy}>${busy ? "Signing in …" : "Sign in"}</button>
    <small>The browser keeps a session, not the password: it ends with Sign out, an hour without use, or the broker.</small>
  </form></div></main>`;
}

function Help({ close }) {
  return html`<${Dialog} title="Keyboard" close=${close}><table><caption class="quiet">Keys</caption><tbody>
    ${PAGES.flatMap(([, all]) => all).map(([, label, key]) => html`<tr><td><kbd>g</kbd> <kbd>${key}</kbd></td><td>${label}</td></tr>`)}
    <tr><td><kbd>/</kbd></td><td>Filter</td></tr><tr><td><kbd>Shift</kbd> <kbd>D</kbd></td><td>Dark or light</td></tr><tr><td><kbd>Shift</kbd> <kbd>L</kbd></td><td>Lock: no changes from this page</td></tr>
    <tr><td><kbd>?</kbd></td><td>This list</td></tr><tr><td><kbd>Esc</kbd></td><td>Close</td></tr></tbody></table><//>`;
}

function Shell({ who, leave }) {
  const [live, tell] = useState({ now: who.now, history: [], lines: [], events: [], on: false });
  const [theme, setTheme] = useState(document.documentElement.dataset.theme);
  const [lock, setLock] = useState(false);
  const [help, setHelp] = useState(false);
  const [toasts, setToasts] = useState([]);
  // the address and the page's function change together: a page never sees names that are another one's
  const [{ at, Page, error }, turn] = useState({ at: place(), Page: null, error: null });
  const [vhost, setVhost] = useState(who.vhosts.includes("/") ? "/" : who.vhosts[0] || "/");
  const [cards, setCards] = useState([]);
  const pending = useRef("");
  const may = (tag) => who.tags.includes("administrator") || who.tags.includes(tag);
  const onlyLooks = !["administrator", "policymaker", "management"].some((tag) => who.tags.includes(tag));
  const watches = may("monitoring");

  useEffect(() => {
    let newest = 0;
    const moved = async () => {
      const to = place(), number = ++newest;
      const module = await import(`./pages/${MODULES[to.page] || to.page}.js`).catch(() => ({}));
      if (number !== newest) return; // another one was asked for meanwhile
      const found = Object.hasOwn(module.pages || {}, to.page) ? module.pages[to.page] : null;
      turn({ at: to, Page: found, error: found ? null : new Error(`There is no page '${to.page}'.`) });
    };
    moved();
    addEventListener("hashchange", moved);
    return () => { newest = -1; removeEventListener("hashchange", moved); };
  }, []);
  useEffect(() => { const head = document.querySelector("main h1"); if (head) head.focus({ preventScroll: true }); scrollTo(0, 0); }, [at.page, at.names.join("/"), Page]);
  useEffect(() => listen(watches ? ["overview", "events", "logs"] : ["events"], (kind, data) => tell((before) => {
    if (kind === "overview") return { ...before, now: data, on: true, history: [...before.history.slice(-299), data] };
    if (kind === "event") return { ...before, events: [data, ...before.events].slice(0, 300) };
    if (kind === "log") return { ...before, lines: [...before.lines.slice(-499), data.line] };
    if (kind === "lost") return { ...before, lines: [...before.lines.slice(-499), `… ${data.count} events were lost: this page was too slow`] };
    if (kind === "open") return { ...before, on: true };
    if (kind === "closed" || kind === "end" || kind === "refused") return { ...before, on: false };
    return before;
  })), []);
  useEffect(() => {
    const look = () => { if (!document.hidden) get("/api/v1/diagnosis").then((found) => setCards(found.cards), () => {}); };
    look();
    const timer = setInterval(look, 10000);
    return () => clearInterval(timer);
  }, []);
  const dark = () => { const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark"; document.documentElement.dataset.theme = next; setTheme(next); };
  useEffect(() => {
    const pressed = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) || document.querySelector("dialog[open]")) return;
      if (pending.current === "g" && KEYS[event.key]) { pending.current = ""; location.hash = "/" + KEYS[event.key]; event.preventDefault(); return; }
      pending.current = event.key === "g" ? "g" : "";
      if (event.key === "?") setHelp(true);
      else if (event.key === "D") dark();
      else if (event.key === "L") setLock((before) => !before);
      else if (event.key === "/") { const one = document.querySelector("main input[type=search]"); if (one) { one.focus(); event.preventDefault(); } }
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
  const toast = (line) => { const one = { line: text(line), key: Math.random() }; setToasts((all) => [...all, one]); setTimeout(() => setToasts((all) => all.filter((other) => other !== one)), 5000); };
  const app = { who, live, theme, vhost, setVhost, toast, cards, may, watches, locked: lock || onlyLooks, lockedBy: onlyLooks ? "Your user may look, and change nothing" : "Locked: unlock at the top" };
  const worst = cards.filter((one) => one.level !== "hint").length;
  const current = { queue: "queues", exchange: "exchanges", connection: "connections" }[at.page] || at.page;
  return html`<${App.Provider} value=${app}><a class="skip" href="#content" onClick=${(event) => { event.preventDefault(); document.querySelector("main h1")?.focus(); }}>To the content</a>
  <div class="layout"><nav class="side" aria-label="Pages"><div class="brand"><img src="icon.svg" alt="" />FlintMQ</div>
    ${PAGES.map(([group, all]) => html`${group ? html`<div class="group">${group}</div>` : null}${all.map(([page, label]) => html`<${Link} to=${"/" + page} aria-current=${current === page ? "page" : undefined}>${label}${page === "diagnosis" && worst ? html`<span class="pill">${worst}</span>` : null}<//>`)}`)}
    <div class="foot">${who.cluster}<br />FlintMQ ${who.version}</div></nav>
  <div><header class="top"><div class="where"><span class=${"live" + (live.on ? "" : " off")} aria-hidden="true"></span><span role="status">${live.on ? "live" : "not connected"}</span>
      <label class="check"><span>Virtual host</span><select value=${vhost} onChange=${(event) => setVhost(event.target.value)}>${who.vhosts.map((one) => html`<option value=${one}>${one}</option>`)}</select></label></div>
    ${onlyLooks ? html`<span class="badge warn">read-only</span>` : html`<button aria-pressed=${lock} onClick=${() => setLock(!lock)}>${lock ? "Unlock changes" : "Lock"}</button>`}
    <button onClick=${dark}>${theme === "dark" ? "Light" : "Dark"}</button><button onClick=${() => setHelp(true)} aria-label="Keyboard shortcuts">?</button>
    <span>${who.user}</span><button onClick=${leave}>Sign out</button></header>
  <main id="content" data-page=${at.page}>${error ? html`<h1 tabindex="-1">Not found</h1><${Trouble} error=${error} />` : Page ? html`<${Page} key=${at.page + "/" + at.names.join("/")} names=${at.names} query=${at.query} />` : html`<p class="empty">Loading …</p>`}</main></div></div>
  ${help ? html`<${Help} close=${() => setHelp(false)} />` : null}
  <section class="toasts" aria-label="Notices"><div role="status" aria-live="polite">${toasts.map((one) => html`<div class="toast" key=${one.key}>${one.line}</div>`)}</div></section><//>`;
}

function Root() {
  const [who, set] = useState(undefined); // undefined: not known yet; null: nobody
  const enter = (one) => { setUser(one ? one.user : null); if (one) setCommandUser(one.user); set(one); };
  const leave = async () => { await logout(); enter(null); };
  onLost(() => enter(null));
  // the browser may have a session: of before a reload, or of another tab
  useEffect(() => { get("/api/v1/overview").then(enter, () => enter(null)); }, []);
  return who === undefined ? null : who ? html`<${Shell} who=${who} leave=${leave} />` : html`<${Login} enter=${enter} />`;
}

document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
render(html`<${Root} />`, document.getElementById("app"));
