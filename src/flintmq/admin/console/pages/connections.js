// Connections: who is here, and closing one.
import { html, useContext, useState, App, Head, Card, Badge, Link, Table, Trouble, Confirm, Change, Command, Facts, Field, Pager, count, bytes, many, text, usePoll, useList, usePage, age } from "../ui.js";
import { name, path, remove, headerText } from "../api.js";
import { curl, ctl } from "../commands.js";

const own = (row) => row.user_provided_name || (row.client_properties || {}).connection_name || "";
const client = (row) => { const all = row.client_properties || {}; return [all.product, all.version, all.platform].filter((one) => typeof one === "string" && one).join(" · "); };
// octets a second; an answer of a broker that counts none has none
const flow = (row, key) => { const value = (row[key + "_oct_details"] || {}).rate; return typeof value === "number" ? bytes(Math.round(value)) + "/s" : "–"; };
const total = (row, key) => (row[key + "_oct"] === undefined ? "–" : bytes(row[key + "_oct"]));

function Connections() {
  const list = useList("/api/connections"), [found, error] = usePage(list, 3000);
  return html`<${Head} title="Connections" sub=${found ? many(found.total_count, "connection") : ""}>${list.filter}<//><${Trouble} error=${error} />
  <${Card}><${Table} caption="Connections" rows=${found && found.items} empty="Nobody is connected." sort=${list.sort} onSort=${list.onSort} columns=${[
    { label: "Name", sort: "user_provided_name", show: (row) => html`<${Link} to=${`/connection/${name(row.name)}`}>${own(row) || row.name}<//>${own(row) ? html`<br /><small>${row.name}</small>` : null}` },
    { label: "Client", sort: "client_properties.product", show: client }, { label: "User", sort: "user", key: "user" }, { label: "Virtual host", sort: "vhost", key: "vhost" },
    { label: "State", sort: "state", show: (row) => html`<${Badge} kind=${row.state === "blocked" ? "bad" : "good"}>${row.state}<//>${row.ssl ? html`<${Badge}>TLS<//>` : null}` }, { label: "Channels", num: true, sort: "channels", show: (row) => count(row.channels) },
    { label: "From client", num: true, sort: "recv_oct_details.rate", show: (row) => flow(row, "recv") }, { label: "To client", num: true, sort: "send_oct_details.rate", show: (row) => flow(row, "send") },
    { label: "Heartbeat", num: true, show: (row) => (row.timeout ? row.timeout + " s" : "off") }, { label: "For", num: true, sort: "connected_at", show: (row) => age((Date.now() - row.connected_at) / 1000) }]} />
  ${found ? html`<${Pager} page=${found.page} pages=${found.page_count} total=${found.total_count} filtered=${found.filtered_count} go=${list.go} />` : null}<${Command}>${ctl("list_connections")}<//><//>`;
}

export const CHANNELS = [
  { label: "Channel", sort: "name", show: (row) => html`${row.name}${row.user_provided_name ? html`<br /><small>${row.user_provided_name}</small>` : null}` }, { label: "User", sort: "user", key: "user" }, { label: "Mode", show: (row) => html`${row.confirm ? html`<${Badge} kind="good">confirms<//>` : null}${row.transactional ? html`<${Badge}>transactions<//>` : null}` },
  { label: "Prefetch", num: true, sort: "prefetch_count", show: (row) => row.prefetch_count || "none" }, { label: "Consumers", num: true, sort: "consumer_count", show: (row) => count(row.consumer_count) }, { label: "Unacked", num: true, sort: "messages_unacknowledged", show: (row) => count(row.messages_unacknowledged) }, { label: "Unconfirmed", num: true, sort: "messages_unconfirmed", show: (row) => count(row.messages_unconfirmed) }];

function Connection({ names: [connection] }) {
  const app = useContext(App), [ask, set] = useState(false), [reason, say] = useState("closed by the operator");
  const url = path`/api/connections/${connection}`, given = { "x-reason": headerText(reason) };
  const [found, error] = usePoll(url, 3000), [channels] = usePoll(url + "/channels", 3000);
  return html`<${Head} title=${(found && own(found)) || connection} sub=${`connection ${connection}`}><${Change} kind="danger" onClick=${() => set(true)}>Close<//><//><${Trouble} error=${error} />
  ${found ? html`<${Card}><${Facts} rows=${[["Named by its application", own(found) || "-"], ["Client", client(found) || "-"], ["User", found.user], ["Virtual host", found.vhost], ["State", found.state], ["Protocol", found.protocol], ["Peer", `${found.peer_host}:${found.peer_port}`], ["From the client", `${flow(found, "recv")}, ${total(found, "recv")} in all`], ["To the client", `${flow(found, "send")}, ${total(found, "send")} in all`], ["Mechanism", found.auth_mechanism], ["Heartbeat", found.timeout ? found.timeout + " s" : "off"], ["Frame", `${count(found.frame_max)} bytes at most`], ["Since", new Date(found.connected_at).toLocaleString()], ["Client's properties", html`<code>${text(found.client_properties)}</code>`]]} /><//>` : null}
  <${Card} title="Channels"><${Table} caption="Channels" rows=${channels} columns=${CHANNELS} empty="No channel is open." /><//>
  ${ask ? html`<${Confirm} title="Close the connection" action="Close" close=${() => set(false)} commands=${[curl("DELETE", url, undefined, given), ctl("close_connection", { connection, reason })]} doIt=${async () => { await remove(url, given); app.toast("The connection is closed"); location.hash = "/connections"; }}>The client is told CONNECTION_FORCED and the reason, and its unacked messages go back to their queues. It may connect again.
    <${Field} label="Reason"><input value=${reason} maxlength="200" onInput=${(event) => say(event.target.value)} /><//><//>` : null}`;
}

export const pages = { connections: Connections, connection: Connection };
