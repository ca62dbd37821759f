// Lines of the log and events as they happen; the API's document.
import { html, useContext, useEffect, useRef, useState, App, Head, Card, Badge, Empty, Table, Trouble, Command, usePoll } from "../ui.js";
import { curl } from "../commands.js";
import { Events } from "./overview.js";

function Log() {
  const { live, watches } = useContext(App), [filter, set] = useState(""), box = useRef(null);
  const lines = live.lines.filter((one) => one.toLowerCase().includes(filter.toLowerCase()));
  useEffect(() => { const one = box.current; if (one && one.scrollHeight - one.scrollTop - one.clientHeight < 120) one.scrollTop = one.scrollHeight; });
  return html`<${Head} title="Log & events" sub="As they happen, since this page was opened."><input type="search" aria-label="Filter lines" placeholder="Filter ( / )" value=${filter} onInput=${(event) => set(event.target.value)} /><//>
  ${watches ? html`<${Card} title="Log"><div class="log" ref=${box} tabindex="0" role="log" aria-label="Lines of the log">${lines.length ? lines.map((one) => html`<div class=${/\[(ERROR|CRITICAL)\]/.test(one) ? "bad" : /\[WARNING\]/.test(one) ? "warn" : ""}>${one}</div>`) : html`<${Empty}>No lines yet.<//>`}</div><${Command}>${curl("GET", "/api/v1/logs")}<//><//>` : html`<${Card}><${Empty}>The log is for users with the tag monitoring or administrator.<//><//>`}
  <${Card} title="Events"><${Events} events=${live.events.slice(0, 100)} /><//>`;
}

function Api() {
  const [found, error] = usePoll("/api/v1/openapi.json", 0);
  const rows = found ? Object.entries(found.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, one]) => ({ path, method: method.toUpperCase(), summary: one.summary, needs: one.description }))) : null;
  return html`<${Head} title="API" sub="Everything this console does goes over HTTP. RabbitMQ's own API is under /api." /><${Trouble} error=${error} /><${Card}><${Table} caption="Operations" rows=${rows} columns=${[{ label: "Method", show: (one) => html`<${Badge} kind=${one.method === "GET" ? "good" : "warn"}>${one.method}<//>` }, { label: "Path", show: (one) => html`<code>${one.path}</code>` }, { label: "What", key: "summary" }, { label: "Needs", key: "needs" }]} /><${Command}>${curl("GET", "/api/v1/openapi.json")}<//><//>`;
}

export const pages = { log: Log, api: Api };
