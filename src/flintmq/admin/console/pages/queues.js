// The list of queues, page by page, and one queue with its consumers, bindings and actions.
import { html, useContext, useState, App, Head, Card, Tile, Chart, Badge, Link, Facts, Table, Pager, Trouble, Dialog, Confirm, Change, Command, Field, columns, count, short, rate, rateOf, many, bytes, parsed, text, usePoll, useList, usePage, useQuery } from "../ui.js";
import { post, put, remove, name, path } from "../api.js";
import { curl, ctl } from "../commands.js";
import { EMPTY, MessageFields, WRONG, message } from "../publish.js";
import { Messages } from "./messages.js";

const details = (row, key) => ((row.message_stats || {})[key + "_details"] || {}).rate;

function Queues() {
  const app = useContext(App), [fresh, declare] = useState(false), [{ all }, change] = useQuery({ all: "" });
  const every = all === "1", where = every ? "" : "/" + name(app.vhost), list = useList(`/api/queues${where}`);
  const [found, error, again, looks] = usePage(list, 3000);
  const shape = [
    { label: "Name", sort: "name", show: (row) => html`<${Link} to=${`/queue/${name(row.vhost)}/${name(row.name)}`}>${row.name}<//>` },
    every ? { label: "Virtual host", sort: "vhost", show: (row) => row.vhost } : null,
    { label: "Type", show: (row) => html`<${Badge}>${row.type}<//>${row.durable ? html`<${Badge}>durable<//>` : null}${row.exclusive ? html`<${Badge} kind="warn">exclusive<//>` : null}${row.policy ? html`<${Badge} kind="good">${row.policy}<//>` : null}${row.state === "paused" ? html`<${Badge} kind="warn">paused<//>` : null}` },
    { label: "Ready", num: true, sort: "messages_ready", show: (row) => count(row.messages_ready) },
    { label: "In flight", num: true, sort: "messages_unacknowledged", show: (row) => count(row.messages_unacknowledged) },
    { label: "Bytes ready", num: true, sort: "message_bytes_ready", show: (row) => bytes(row.message_bytes_ready) },
    { label: "In", num: true, sort: "message_stats.publish_details.rate", show: (row) => rateOf(details(row, "publish"), looks) },
    { label: "Out", num: true, sort: "message_stats.deliver_get_details.rate", show: (row) => rateOf(details(row, "deliver_get"), looks) },
    { label: "Consumers", num: true, sort: "consumers", show: (row) => (row.consumers ? count(row.consumers) : row.messages_ready ? html`<${Badge} kind="warn">none<//>` : "0") },
  ].filter(Boolean);
  return html`<${Head} title="Queues" sub=${found ? many(found.total_count, "queue") : ""}>
    ${list.filter}
    <label class="check"><input type="checkbox" checked=${every} onChange=${(event) => change({ all: event.target.checked ? "1" : "" })} /><span>all virtual hosts</span></label>
    <${Change} kind="main" onClick=${() => declare(true)}>New queue<//><//>
  <${Trouble} error=${error} /><${Card}><${Table} caption="Queues" columns=${shape} rows=${found && found.items} sort=${list.sort} onSort=${list.onSort} empty=${list.name ? "No queue has this in its name." : "No queues yet: declare one, or start a client."} />
  ${found ? html`<${Pager} page=${found.page} pages=${found.page_count} total=${found.total_count} filtered=${found.filtered_count} go=${list.go} />` : null}<${Command}>${ctl("list_queues", { vhost: app.vhost })}<//><//>
  ${fresh ? html`<${Declare} close=${() => { declare(false); again(); }} />` : null}`;
}

function Declare({ close }) {
  const app = useContext(App);
  const [form, set] = useState({ name: "", type: "classic", durable: true, arguments: "{}" }), [error, fail] = useState(null);
  const given = parsed(form.arguments), body = given && { durable: form.durable, auto_delete: false, arguments: { ...(form.type === "classic" ? {} : { "x-queue-type": form.type }), ...given } };
  const url = path`/api/queues/${app.vhost}/${form.name}`;
  const submit = async (event) => { event.preventDefault(); try { await put(url, body); app.toast(`Queue ${form.name} is there`); close(); } catch (error) { fail(error); } };
  return html`<${Dialog} title="New queue" close=${close}><form class="form" onSubmit=${submit}>
    <${Field} label="Name"><input required value=${form.name} onInput=${(event) => set({ ...form, name: event.target.value })} /><//>
    <${Field} label="Type"><select value=${form.type} onChange=${(event) => set({ ...form, type: event.target.value })}>${["classic", "quorum", "stream"].map((one) => html`<option>${one}</option>`)}</select><//>
    <label class="check"><input type="checkbox" checked=${form.durable} onChange=${(event) => set({ ...form, durable: event.target.checked })} /><span>durable</span></label>
    <div class="all"><${Field} label="Arguments (JSON)" hint='Such as {"x-max-length": 1000}'><textarea value=${form.arguments} onInput=${(event) => set({ ...form, arguments: event.target.value })}></textarea><//></div>
    <div class="all"><${Trouble} error=${error || (body ? null : { message: "The arguments are no JSON object." })} />${body ? html`<${Command}>${curl("PUT", url, body)}<//>` : null}
    <div class="buttons"><button type="button" onClick=${close}>Cancel</button><button class="main" disabled=${!body}>Declare</button></div></div></form><//>`;
}

function Queue({ names: [vhost, queue] }) {
  const app = useContext(App);
  const [{ tab }, turn] = useQuery({ tab: "messages" }), show = (to) => turn({ tab: to }), [ask, setAsk] = useState(null), [failed, fail] = useState(null);
  const url = path`/api/queues/${vhost}/${queue}`;
  const [found, error, again, looks] = usePoll(url, 2000), [round, next] = useState(0);
  const [samples] = usePoll(path`/api/v1/queues/${vhost}/${queue}/samples` + "?seconds=600", 5000);
  const data = columns(samples, ["messages_ready", "messages_unacked"], ["enqueued", "delivered"]);
  if (!found) return html`<${Head} title=${queue} /><${Trouble} error=${error} />`;
  const rests = found.state === "paused", rest = async () => { try { await put(url + (rests ? "/resume" : "/pause")); app.toast(rests ? "Deliveries go on" : "Deliveries rest; publishes go on"); fail(null); again(); } catch (error) { fail(error); } };
  const stream = found.type === "stream", alone = !found.consumers && found.messages_ready;
  const tabs = [["messages", "Messages"], ["consumers", `Consumers (${found.consumers})`], ["bindings", "Bindings"], ["settings", "Settings"]];
  const kinds = [found.durable && "durable", found.exclusive && "exclusive", found.auto_delete && "auto-delete"].filter(Boolean).join(", ");
  const parts = {
    messages: () => html`<${Messages} vhost=${vhost} queue=${queue} stream=${stream} changed=${again} round=${round} />`,
    consumers: () => html`<${Consumers} vhost=${vhost} queue=${queue} />`,
    bindings: () => html`<${Bindings} vhost=${vhost} queue=${queue} />`,
    settings: () => html`<${Card}><${Facts} rows=${[["Arguments", html`<code>${text(found.arguments)}</code>`], ["Policy", found.policy || "none"], ["Operator policy", found.operator_policy || "none"], ["What the policies say", html`<code>${text(found.effective_policy_definition)}</code>`], ["Memory", bytes(found.memory)], ["State", found.state]]} /><${Command}>${ctl(rests ? "resume_queue" : "pause_queue", { vhost, queue })}<//><${Command}>${ctl("list_queues", { vhost })}<//><//>`,
  };
  return html`<${Head} title=${queue} sub=${`queue in ${vhost}`}>
    <${Change} onClick=${() => setAsk("publish")}>Publish<//><${Change} onClick=${rest}>${rests ? "Resume" : "Pause"}<//>
    ${stream ? null : html`<${Change} onClick=${() => setAsk("purge")}>Purge<//>`}<${Change} kind="danger" onClick=${() => setAsk("delete")}>Delete<//><//>
  <${Trouble} error=${error || failed} />
  ${rests ? html`<div class="diag hint" role="status"><${Badge} kind="warn">paused<//><p><b>Consumers are given nothing</b></p><span></span><p class="what">Publishes go on. Resume it to let deliveries go on.</p></div>` : null}
  <div class="tiles"><${Tile} label="Ready" value=${short(found.messages_ready)} note=${bytes(found.message_bytes_ready)} /><${Tile} label="In flight" value=${short(found.messages_unacknowledged)} />
    <${Tile} label="In" value=${rateOf(details(found, "publish"), looks)} /><${Tile} label="Out" value=${rateOf(details(found, "deliver_get"), looks)} />
    <${Tile} label="Consumers" value=${count(found.consumers)} kind=${alone ? "warn" : ""} note=${alone ? "nobody consumes" : ""} /><${Tile} label="Type" value=${found.type} note=${kinds} /></div>
  <div class="grid charts"><${Card}><${Chart} title="Messages waiting" times=${data.times} series=${[{ label: "ready", color: "--c1", values: data.messages_ready }, { label: "in flight", color: "--c2", values: data.messages_unacked }]} /><//>
    <${Card}><${Chart} title="Messages a second" times=${data.times} unit=${rate} series=${[{ label: "in", color: "--c3", values: data.enqueued }, { label: "out", color: "--c1", values: data.delivered }]} /><//></div>
  <div class="tabs" role="tablist" aria-label="Parts of the queue">${tabs.map(([key, label]) => html`<button role="tab" aria-selected=${tab === key} onClick=${() => show(key)}>${label}</button>`)}</div>
  ${(parts[tab] || parts.messages)()}
  ${ask === "publish" ? html`<${Publish} vhost=${vhost} queue=${queue} close=${() => { setAsk(null); again(); next(round + 1); }} />` : null}
  ${ask === "purge" ? html`<${Confirm} title="Purge the queue" word=${queue} action="Purge" close=${() => setAsk(null)} commands=${[curl("DELETE", url + "/contents"), ctl("purge_queue", { vhost, queue })]} doIt=${async () => { await remove(url + "/contents"); app.toast("The queue is empty"); again(); next(round + 1); }}>${many(found.messages_ready, "ready message")} will end. Those in consumers' hands stay.<//>` : null}
  ${ask === "delete" ? html`<${Confirm} title="Delete the queue" word=${queue} action="Delete" close=${() => setAsk(null)} commands=${[curl("DELETE", url), ctl("delete_queue", { vhost, queue })]} doIt=${async () => { await remove(url); location.hash = "/queues"; }}>The queue goes with ${many(found.messages, "message")} and its bindings; its consumers are cancelled.<//>` : null}`;
}

function Publish({ vhost, queue, close }) {
  const app = useContext(App), [form, set] = useState(EMPTY), [error, fail] = useState(null);
  const properties = message(form), value = properties && { body: form.body, persistent: form.persistent, properties };
  const url = path`/api/v1/queues/${vhost}/${queue}/messages`;
  const submit = async (event) => { event.preventDefault(); try { await post(url, value); app.toast("Published"); close(); } catch (error) { fail(error); } };
  return html`<${Dialog} title=${`Publish to ${queue}`} close=${close}><form onSubmit=${submit}><${MessageFields} form=${form} set=${set} /><${Trouble} error=${error || (value ? null : WRONG)} />
    ${value ? html`<${Command}>${curl("POST", url, value)}<//>` : null}<div class="buttons"><button type="button" onClick=${close}>Cancel</button><button class="main" disabled=${!value}>Publish</button></div></form><//>`;
}

function Consumers({ vhost, queue }) {
  const [found, error] = usePoll(path`/api/v1/queues/${vhost}/${queue}/consumers`, 2000);
  return html`<${Card} title="Consumers" tools=${found && found.fairness !== null ? html`<${Badge} kind=${found.fairness > 0.8 ? "good" : "warn"}>fairness ${found.fairness}<//>` : null}><${Trouble} error=${error} />
    ${found && found.hoarding ? html`<div class="diag warning"><${Badge} kind="warn">hoarding<//><p><b>One consumer holds what others could work on</b></p><span></span><p class="what">${found.hoarding}. Set a smaller prefetch (basic.qos).</p></div>` : null}
    <${Table} caption="Consumers" rows=${found && found.consumers} empty="Nobody consumes from this queue." columns=${[
      { label: "Tag", key: "consumer_tag" },
      { label: "Connection", show: (row) => html`<${Link} to=${`/connection/${name(row.connection)}`}>${row.connection}<//>` },
      { label: "User", key: "user" },
      { label: "Prefetch", num: true, show: (row) => row.prefetch || "none" },
      { label: "In flight", num: true, show: (row) => count(row.in_flight) },
      { label: "Used", show: (row) => (row.prefetch ? html`<progress aria-label="Share of the prefetch in use" max=${row.prefetch} value=${row.in_flight}></progress>` : "") },
      { label: "Taken", num: true, show: (row) => count(row.taken) },
      { label: "Rate", num: true, show: (row) => rate(row.rate) },
      { label: "Share", num: true, show: (row) => (row.share * 100).toFixed(0) + " %" },
    ]} /><//>`;
}

function Bindings({ vhost, queue }) {
  const app = useContext(App);
  const [found, error, again] = usePoll(path`/api/queues/${vhost}/${queue}/bindings`, 5000);
  const [form, set] = useState({ exchange: "", key: "", arguments: "{}" }), [failed, fail] = useState(null);
  const given = parsed(form.arguments), url = path`/api/bindings/${vhost}/e/${form.exchange}/q/${queue}`, body = { routing_key: form.key, arguments: given || {} };
  const add = async (event) => { event.preventDefault(); try { await post(url, body); app.toast("Bound"); fail(null); again(); } catch (error) { fail(error); } };
  const drop = async (row) => { try { await remove(path`/api/bindings/${vhost}/e/${row.source}/q/${queue}/${row.properties_key}`); again(); } catch (error) { fail(error); } };
  return html`<${Card} title="Bindings"><${Trouble} error=${error || failed} /><${Table} caption="Bindings" rows=${found} columns=${[
    { label: "From", show: (row) => (row.source ? html`<${Link} to=${`/exchange/${name(vhost)}/${name(row.source)}`}>${row.source}<//>` : "(default exchange)") },
    { label: "Routing key", key: "routing_key" },
    { label: "Arguments", show: (row) => (Object.keys(row.arguments).length ? text(row.arguments) : "") },
    { label: "Action", show: (row) => (row.source ? html`<${Change} kind="small" onClick=${() => drop(row)}>Unbind<//>` : "") },
  ]} />
    <form class="form" onSubmit=${add}><${Field} label="Exchange"><input required value=${form.exchange} onInput=${(event) => set({ ...form, exchange: event.target.value })} /><//><${Field} label="Routing key"><input value=${form.key} onInput=${(event) => set({ ...form, key: event.target.value })} /><//><${Field} label="Arguments (JSON)"><input class="mono" value=${form.arguments} onInput=${(event) => set({ ...form, arguments: event.target.value })} /><//><button class="main" disabled=${app.locked || !given}>Bind</button></form>
    ${form.exchange ? html`<${Command}>${curl("POST", url, body)}<//>` : null}<//>`;
}

export const pages = { queues: Queues, queue: Queue };
