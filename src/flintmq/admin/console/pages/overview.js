// What is going on: tiles, charts, what needs a look; and the diagnosis.
import { html, useContext, useState, App, Head, Tile, Card, Chart, Badge, Link, Empty, Spark, Table, Trouble, columns, count, many, short, rate, bytes, usePoll } from "../ui.js";
import { name } from "../api.js";

const RANGES = [[300, "5 min"], [3600, "1 h"], [86400, "24 h"]];
const WAYS = { why: "/route", transactions: "/transactions", pipelines: "/pipelines" };

// growth a second over the last seconds of the live stream
function slope(history, key) {
  if (history.length < 2) return null;
  const last = history[history.length - 1], first = history[Math.max(0, history.length - 6)];
  return last.at_ms > first.at_ms ? ((last[key] - first[key]) * 1000) / (last.at_ms - first.at_ms) : null;
}

export function Diagnosis({ cards }) {
  if (!cards.length) return html`<${Empty}>Nothing stands out. Queues, consumers, transactions and pipelines look well.<//>`;
  const way = (card) => (card.queue !== undefined ? `/queue/${name(card.vhost)}/${name(card.queue)}` : WAYS[card.page]);
  return cards.map((card) => html`<div class=${"diag " + card.level}><${Badge} kind=${card.level}>${card.level}<//><p><b>${card.title}</b></p>
    ${way(card) ? html`<${Link} to=${way(card)} aria-label=${"Look: " + card.title}>Look<//>` : html`<span></span>`}<p class="what">${card.text}. ${card.advice}.</p></div>`);
}

export function Events({ events }) {
  const what = ({ kind, at_ms, vhost, ...rest }) => Object.entries(rest).map(([key, value]) => `${key} ${value}`).join(" · ");
  return html`<${Table} caption="Events" rows=${events} empty="Nothing happened since this page was opened." columns=${[
    { label: "Time", show: (one) => new Date(one.at_ms).toLocaleTimeString() },
    { label: "Event", show: (one) => html`<${Badge} kind=${/deleted|closed|gone/.test(one.kind) ? "warn" : "good"}>${one.kind}<//>` },
    { label: "What", show: what },
    { label: "Virtual host", show: (one) => one.vhost },
  ]} />`;
}

function Overview() {
  const { who, live, watches, cards } = useContext(App);
  const [seconds, range] = useState(300);
  const [found] = usePoll(watches ? `/api/v1/samples?seconds=${seconds}` : null, seconds > 300 ? 20000 : 2000);
  const [polled] = usePoll(watches ? null : "/api/v1/overview", 3000);
  const now = (polled && polled.now) || live.now || {};
  const history = live.history;
  const grows = slope(history, "messages_ready");
  const data = columns(found, ["messages_ready", "messages_unacked", "connections", "consumers", "memory_bytes"], ["enqueued", "delivered", "dropped"]);
  const last = (key) => history.slice(-60).map((one) => one[key]);
  const trend = grows === null ? "" : grows > 0.5 ? `grows ${rate(grows)}` : grows < -0.5 ? `shrinks ${rate(-grows)}` : "steady";
  return html`<${Head} title="Overview" sub=${`${who.node} · ${who.listeners.map((one) => `${one.protocol} ${one.port}`).join(" · ")}`}>
    ${watches ? html`<div class="row" role="group" aria-label="Time range">${RANGES.map(([value, label]) => html`<button aria-pressed=${seconds === value} class=${seconds === value ? "main" : ""} onClick=${() => range(value)}>${label}</button>`)}</div>` : null}<//>
  ${(now.alarms || []).map((one) => html`<div class="trouble" role="alert"><strong>${now.blocked ? "Publishers are blocked" : "Publishers will be blocked"}: low on ${one}</strong> · ${many(now.blocked, "connection")} blocked</div>`)}
  <div class="tiles">
    <${Tile} label="Ready" value=${short(now.messages_ready)} note=${trend} kind=${grows > 50 ? "warn" : ""}><${Spark} values=${last("messages_ready")} /><//>
    <${Tile} label="In flight" value=${short(now.messages_unacked)}><${Spark} values=${last("messages_unacked")} /><//>
    <${Tile} label="Published" value=${rate(slope(history, "enqueued"))} note=${`${short(now.enqueued)} in all`} />
    <${Tile} label="Delivered" value=${rate(slope(history, "delivered"))} note=${`${short(now.delivered)} in all`} />
    <${Tile} label="Connections" value=${count(now.connections)} note=${many(now.channels, "channel")} />
    <${Tile} label="Consumers" value=${count(now.consumers)} />
    <${Tile} label="Queues" value=${count(now.queues)} />
    ${watches ? html`<${Tile} label="Memory" value=${bytes(now.memory_bytes)} note=${`of ${bytes(now.memory_limit)}`} kind=${now.memory_bytes > 0.75 * now.memory_limit ? "bad" : ""} />
    <${Tile} label="Dropped" value=${short(now.dropped)} note=${Object.entries(now.drops || {}).map(([why, many]) => `${why} ${short(many)}`).join(", ").slice(0, 60)} kind=${history.length && now.dropped > history[0].dropped ? "warn" : ""} />` : null}
  </div>
  ${watches ? html`<div class="grid charts">
    <${Card}><${Chart} title="Messages waiting" times=${data.times} series=${[{ label: "ready", color: "--c1", values: data.messages_ready }, { label: "in flight", color: "--c2", values: data.messages_unacked }]} /><//>
    <${Card}><${Chart} title="Messages a second" times=${data.times} unit=${rate} series=${[{ label: "published", color: "--c3", values: data.enqueued }, { label: "delivered", color: "--c1", values: data.delivered }]} /><//>
    <${Card}><${Chart} title="Clients" times=${data.times} series=${[{ label: "connections", color: "--c4", values: data.connections }, { label: "consumers", color: "--c2", values: data.consumers }]} /><//>
    <${Card}><${Chart} title="Memory of messages and clients" times=${data.times} unit=${bytes} series=${[{ label: "bytes", color: "--c3", values: data.memory_bytes }]} /><//>
  </div>` : null}
  <div class="grid"><${Card} title="What to look at first" tools=${html`<${Link} to="/diagnosis" aria-label="All diagnosis cards">All<//>`}><${Diagnosis} cards=${cards.slice(0, 4)} /><//>
  <${Card} title="Latest events" tools=${html`<${Link} to="/log" aria-label="All events">All<//>`}><${Events} events=${live.events.slice(0, 8)} /><//></div>`;
}

function All() {
  const { cards } = useContext(App);
  const [found, error] = usePoll("/api/v1/diagnosis", 5000);
  return html`<${Head} title="Diagnosis" sub="What stands out, with its cause and one thing to do. The list is made anew every five seconds." /><${Trouble} error=${error} /><${Diagnosis} cards=${found ? found.cards : cards} />`;
}

export const pages = { overview: Overview, diagnosis: All };
