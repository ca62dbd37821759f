// Connections: who is here, and closing one.
import { html, useContext, useState, App, Head, Card, Badge, Link, Table, Trouble, Confirm, Change, Facts, Pager, count, text, usePoll, age } from "../ui.js";
import { name, path, curl, ctl, remove } from "../api.js";

function Connections() {
  const [page, go] = useState(1), [filter, set] = useState("");
  const [found, error] = usePoll(`/api/connections?page=${page}&page_size=50&name=${name(filter)}`, 3000);
  return html`<${Head} title="Connections" sub=${found ? `${count(found.total_count)} connections` : ""}><input type="search" aria-label="Filter by name" placeholder="Filter by name ( / )" value=${filter} onInput=${(event) => { set(event.target.value); go(1); }} /><//><${Trouble} error=${error} />
  <${Card}><${Table} caption="Connections" rows=${found && found.items} empty="Nobody is connected." columns=${[
    { label: "Name", show: (row) => html`<${Link} to=${`/connection/${name(row.name)}`}>${row.name}<//>${row.user_provided_name ? html`<br /><small>${row.user_provided_name}</small>` : null}` }, { label: "User", key: "user" }, { label: "Virtual host", key: "vhost" },
    { label: "State", show: (row) => html`<${Badge} kind=${row.state === "blocked" ? "bad" : "good"}>${row.state}<//>${row.ssl ? html`<${Badge}>TLS<//>` : null}` }, { label: "Protocol", key: "protocol" }, { label: "Channels", num: true, show: (row) => count(row.channels) },
    { label: "Heartbeat", num: true, show: (row) => (row.timeout ? row.timeout + " s" : "off") }, { label: "For", num: true, show: (row) => age((Date.now() - row.connected_at) / 1000) }]} />
  ${found ? html`<${Pager} page=${found.page} pages=${found.page_count} total=${found.total_count} filtered=${found.filtered_count} go=${go} />` : null}<//>`;
}

export const CHANNELS = [
  { label: "Channel", key: "name" }, { label: "User", key: "user" }, { label: "Mode", show: (row) => html`${row.confirm ? html`<${Badge} kind="good">confirms<//>` : null}${row.transactional ? html`<${Badge}>transactions<//>` : null}` },
  { label: "Prefetch", num: true, show: (row) => row.prefetch_count || "none" }, { label: "Consumers", num: true, show: (row) => count(row.consumer_count) }, { label: "Unacked", num: true, show: (row) => count(row.messages_unacknowledged) }, { label: "Unconfirmed", num: true, show: (row) => count(row.messages_unconfirmed) }];

function Connection({ names: [connection] }) {
  const app = useContext(App), [ask, set] = useState(false);
  const url = path`/api/connections/${connection}`;
  const [found, error] = usePoll(url, 3000), [channels] = usePoll(url + "/channels", 3000);
  return html`<${Head} title=${connection} sub="connection"><${Change} kind="danger" onClick=${() => set(true)}>Close<//><//><${Trouble} error=${error} />
  ${found ? html`<${Card}><${Facts} rows=${[["Named by its application", found.user_provided_name || "-"], ["User", found.user], ["Virtual host", found.vhost], ["State", found.state], ["Protocol", found.protocol], ["Peer", `${found.peer_host}:${found.peer_port}`], ["Mechanism", found.auth_mechanism], ["Heartbeat", found.timeout ? found.timeout + " s" : "off"], ["Frame", `${count(found.frame_max)} bytes at most`], ["Since", new Date(found.connected_at).toLocaleString()], ["Client", html`<code>${text(found.client_properties)}</code>`]]} /><//>` : null}
  <${Card} title="Channels"><${Table} caption="Channels" rows=${channels} columns=${CHANNELS} empty="No channel is open." /><//>
  ${ask ? html`<${Confirm} title="Close the connection" action="Close" close=${() => set(false)} commands=${[curl("DELETE", url), ctl("close_connection", connection, "closed by the operator")]} doIt=${async () => { await remove(url); app.toast("The connection is closed"); location.hash = "/connections"; }}>The client is told CONNECTION_FORCED, and what it holds goes back to its queues. It may connect again.<//>` : null}`;
}

export const pages = { connections: Connections, connection: Connection };
