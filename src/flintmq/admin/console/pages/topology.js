// Exchanges, queues and bindings as a graph: exchanges on the left, queues on the right.
import { html, useContext, useState, App, Head, Card, Empty, Trouble, Table, Command, count, many, usePoll } from "../ui.js";
import { name, path } from "../api.js";
import { curl } from "../commands.js";

const HIGH = 46, WIDE = 230;
const cut = (text, size) => (text.length > size ? text.slice(0, size - 1) + "…" : text);

function Topology() {
  const app = useContext(App), [around, set] = useState(""), [as, show] = useState("graph");
  const url = path`/api/v1/vhosts/${app.vhost}/topology` + `?count=80${around ? `&around=${name(around)}` : ""}`;
  const [found, error] = usePoll(url, 5000);
  return html`<${Head} title="Topology" sub=${found ? `${many(found.nodes.length, "name")} of exchanges and queues, ${many(found.edges.length, "binding")}${found.left_out ? `, ${count(found.left_out)} more left out: filter by a name` : ""}` : ""}>
    <input type="search" aria-label="Around this exchange or queue" placeholder="Around a name ( / )" value=${around} onChange=${(event) => set(event.target.value)} /><button onClick=${() => show(as === "graph" ? "list" : "graph")}>${as === "graph" ? "As a list" : "As a graph"}</button><//><${Trouble} error=${error} />
  <${Card}>${!found ? html`<${Empty}>Looking …<//>` : !found.edges.length ? html`<${Empty}>No bindings${around ? " touch this name" : " yet"}.<//>` : as === "graph" ? html`<${Graph} found=${found} around=${around} vhost=${app.vhost} />` : html`<${Table} caption="Bindings" rows=${found.edges} columns=${[{ label: "From", show: (one) => one.from || "(default)" }, { label: "To", show: (one) => `${one.kind} ${one.to}` }, { label: "Key", show: (one) => (one.alternate ? "alternate exchange" : one.key) }]} />`}<${Command}>${curl("GET", url)}<//><//>`;
}

function Graph({ found, around, vhost }) {
  const exchanges = found.nodes.filter((one) => one.kind === "exchange"), queues = found.nodes.filter((one) => one.kind === "queue");
  const targets = new Set(found.edges.filter((one) => one.kind === "exchange").map((one) => one.to));
  const columns = [exchanges.filter((one) => !targets.has(one.name)), exchanges.filter((one) => targets.has(one.name)), queues];
  const places = {};
  columns.forEach((all, column) => all.forEach((one, row) => { places[one.kind + " " + one.name] = [20 + column * (WIDE + 150), 14 + row * (HIGH + 14)]; }));
  const high = Math.max(...columns.map((all) => all.length)) * (HIGH + 14) + 20, width = 40 + 3 * WIDE + 300;
  return html`<div class="graph" tabindex="0" role="region" aria-label="Graph of bindings; the same as a list is a button away"><svg viewBox=${`0 0 ${width} ${high}`} role="group" aria-label="Bindings">
    ${found.edges.map((one) => {
      const from = places["exchange " + one.from], to = places[one.kind + " " + one.to];
      if (!from || !to) return null;
      const [x1, y1, x2, y2] = [from[0] + WIDE, from[1] + HIGH / 2, to[0], to[1] + HIGH / 2], middle = (x1 + x2) / 2;
      return html`<g><path class=${"edge" + (one.alternate ? " alt" : "")} d=${`M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}`}><title>${one.alternate ? "alternate exchange" : one.key}</title></path>${found.edges.length <= 40 ? html`<text class="small" text-anchor="end" x=${x2 - 8} y=${y2 - 5}>${cut(one.alternate ? "alternate" : one.key, 22)}</text>` : null}</g>`;
    })}
    ${found.nodes.map((one) => { const [x, y] = places[one.kind + " " + one.name];
      return html`<a href=${`#/${one.kind}/${name(vhost)}/${name(one.name || "amq.default")}`} class=${one.kind + (one.name === around ? " hot" : "")}><rect x=${x} y=${y} width=${WIDE} height=${HIGH} rx=${one.kind === "queue" ? 8 : 22} /><text x=${x + 16} y=${y + 20}>${cut(one.name || "(default)", 28)}</text><text class="small" x=${x + 16} y=${y + 36}>${one.kind === "queue" ? `${one.type} · ${count(one.ready)} ready · ${many(one.consumers, "consumer")}` : one.type}</text></a>`; })}
  </svg></div>`;
}

export const pages = { topology: Topology };
