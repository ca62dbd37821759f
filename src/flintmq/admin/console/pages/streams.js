// Streams and their consumer groups: how far each is, what it holds, how even the work is.
import { html, useContext, App, Head, Card, Badge, Link, Empty, Table, Trouble, Command, count, bytes, usePoll } from "../ui.js";
import { name, path } from "../api.js";
import { curl } from "../commands.js";

function Streams() {
  const app = useContext(App), url = path`/api/v1/vhosts/${app.vhost}/groups`;
  const [found, error] = usePoll(url, 2000);
  return html`<${Head} title="Streams & groups" sub="A group is a set of consumers that share one place in a stream." /><${Trouble} error=${error} />
  ${found && !found.streams.length ? html`<${Card}><${Empty}>There are no streams in ${app.vhost}. Declare a queue with x-queue-type=stream.<//><//>` : null}
  ${((found && found.streams) || []).map((one) => html`<${Card} title=${html`<${Link} to=${`/queue/${name(app.vhost)}/${name(one.queue)}`}>${one.queue}<//>`} tools=${html`<span>${one.fairness !== null ? html`<${Badge} kind=${one.fairness > 0.8 ? "good" : "warn"}>fairness of groups ${one.fairness}<//>` : null}<${Badge}>offsets ${count(one.first_offset)} to ${count(one.next_offset)}<//><${Badge}>${bytes(one.bytes)}<//></span>`}>
    <${Table} caption="Consumer groups" rows=${one.groups} empty="No group reads this stream." columns=${[
      { label: "Group", key: "group" }, { label: "Members", num: true, show: (row) => count(row.members) }, { label: "Lag", num: true, show: (row) => html`<${Badge} kind=${row.lag > 10000 ? "warn" : "good"}>${count(row.lag)}<//>` },
      { label: "Progress", show: (row) => html`<progress aria-label="Read so far" max=${Math.max(1, one.next_offset - one.first_offset)} value=${Math.max(0, row.next - one.first_offset)}></progress>` }, { label: "In flight", num: true, show: (row) => count(row.in_flight) },
      { label: "Acked", num: true, show: (row) => count(row.acked) }, { label: "Again", num: true, show: (row) => count(row.redelivered) }, { label: "Lost to retention", num: true, show: (row) => (row.lost ? html`<${Badge} kind="bad">${count(row.lost)}<//>` : "0") },
      { label: "Hints", show: (row) => (row.full_waits && row.in_flight > 1000 ? html`<${Badge} kind="warn">hoards: waits for its oldest<//>` : row.members === 0 && row.lag ? html`<${Badge} kind="warn">nobody reads<//>` : "") }]} /><//>`)}
  <${Command}>${curl("GET", url)}<//>`;
}

export const pages = { streams: Streams };
