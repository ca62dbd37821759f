// Spark's subscriptions and writers, as the broker knows them; distributed transactions.
import { html, useContext, App, Head, Card, Tile, Badge, Empty, Table, Trouble, Command, count, text, age, usePoll } from "../ui.js";
import { curl, pipeline } from "../commands.js";

function Pipelines() {
  const { who } = useContext(App), plane = who.listeners.find((one) => /flight|grpc/i.test(one.protocol)); // off: there is no command
  const [found, error] = usePoll("/api/v1/pipelines", 2000);
  const writers = (found && found.writers) || {}, stages = writers.stages || {};
  return html`<${Head} title="Spark pipelines" sub="Subscriptions read queues batch by batch, exactly once; writers publish in stages." /><${Trouble} error=${error} />
  ${found && !found.available ? html`<${Card}><${Empty}>This broker keeps nothing on disk, so no pipeline can read from it exactly once.<//><//>` : null}
  ${found && found.calls !== undefined ? html`<div class="tiles"><${Tile} label="Calls of Spark" value=${count(found.calls)} note=${`${count(found.refused)} refused`} kind=${found.refused ? "warn" : ""} />${Object.entries(stages).map(([state, many]) => html`<${Tile} label=${`Stages ${state}`} value=${count(many)} />`)}${Object.entries(writers.scopes || {}).map(([kind, many]) => html`<${Tile} label=${`Scopes: ${kind}`} value=${count(many)} />`)}</div>` : null}
  <${Card} title="Subscriptions"><${Table} caption="Subscriptions" rows=${found && found.subscriptions} empty="No Spark query subscribes." columns=${[
    { label: "Name", key: "name" }, { label: "Virtual host", key: "vhost" }, { label: "Reader", show: (row) => html`<${Badge} kind=${row.active ? "good" : "warn"}>${row.active ? "working" : "silent"}<//>` }, { label: "Batches", num: true, show: (row) => count(row.committed) },
    { label: "Lag", num: true, show: (row) => count(row.behind) }, { label: "In this batch", num: true, show: (row) => count(row.prepared) }, { label: "For", num: true, show: (row) => (row.prepared ? html`<${Badge} kind=${row.prepared_age_ms > 300000 ? "bad" : "good"}>${age(row.prepared_age_ms / 1000)}<//>` : "") }]} />${plane ? html`<${Command}>${pipeline(plane.port)}<//>` : null}<${Command}>${curl("GET", "/api/v1/pipelines")}<//><//>`;
}

function Transactions() {
  const [found, error] = usePoll("/api/v1/transactions", 3000);
  return html`<${Head} title="Transactions" sub="Distributed transactions. A prepared one waits for its manager's decision, also over restarts." /><${Trouble} error=${error} /><${Card}><${Table} caption="Transactions" rows=${found && found.transactions} empty="None is open or in doubt." columns=${[
    { label: "Xid", show: (row) => html`<code>${row.xid}</code>` }, { label: "State", show: (row) => html`<${Badge} kind=${row.state === "prepared" ? "warn" : ""}>${row.state}<//>` }, { label: "Age", num: true, show: (row) => age(row.age_s) }, { label: "Enter", num: true, show: (row) => count(row.enqueues) }, { label: "Held", num: true, show: (row) => count(row.dequeues) },
    { label: "Queues", show: (row) => row.queues.map((one) => html`<${Badge}>${one.queue || "?"}: +${one.enqueues} −${one.dequeues}<//>`) }]} /><${Command}>${curl("GET", "/api/v1/transactions")}<//><//>`;
}

export const pages = { pipelines: Pipelines, transactions: Transactions };
