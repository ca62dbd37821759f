// What moves by itself: messages that wait for their time, shovels, links of federation with their upstreams.
import { html, useContext, useState, App, Head, Card, Badge, Table, Trouble, Confirm, Change, Command, Dialog, Field, count, many, bytes, text, usePoll } from "../ui.js";
import { get, path, put, remove } from "../api.js";
import { curl, ctl } from "../commands.js";

const stamp = (ms) => new Date(ms).toLocaleString();
const kindOf = (state) => ({ running: "good", starting: "warn" })[state] || "bad";

function Schedules() {
  const app = useContext(App), [more, setMore] = useState([]), [ask, setAsk] = useState(null), [failed, fail] = useState(null);
  const url = path`/api/v1/schedules/${app.vhost}`;
  const [found, error, again] = usePoll(app.watches ? url + "?count=100" : null, 3000);
  const following = more.length ? more[more.length - 1].next : found && found.next;
  const rows = found && [...found.messages, ...more.flatMap((one) => one.messages)];
  const fresh = () => { setMore([]); again(); };
  const next = async () => { try { const page = await get(`${url}?count=100&position=${following}`); setMore((all) => [...all, page]); } catch (error) { fail(error); } };
  if (!app.watches) return html`<${Head} title="Scheduled" /><${Card}><p class="empty">Scheduled messages are shown to users with the tag monitoring or administrator.</p><//>`;
  return html`<${Head} title="Scheduled" sub=${found ? `${many(found.messages_count, "message")} of ${app.vhost}, ${bytes(found.message_bytes)}, to be published at their time` : "Messages that wait for their time"}>
    <${Change} kind="danger" onClick=${() => setAsk("all")}>Cancel all<//><//><${Trouble} error=${error || failed} />
  <${Card}><${Table} caption="Scheduled messages" rows=${rows} empty="No message waits. Publish one with the header x-delay (milliseconds)." columns=${[
    { label: "Due", show: (row) => html`${stamp(row.due_ms)}${row.due_ms < Date.now() ? html` <${Badge} kind="warn">due<//>` : null}` }, { label: "Exchange", show: (row) => row.exchange || "(default)" }, { label: "Routing key", show: (row) => html`<code>${row.routing_key}</code>` },
    { label: "Size", num: true, show: (row) => bytes(row.body_bytes) }, { label: "Kept", show: (row) => html`<${Badge}>${row.on_disk ? "on disk" : "in memory"}<//>` }, { label: "Action", show: (row) => html`<${Change} kind="small danger" onClick=${() => setAsk(row)}>Cancel<//>` }]} />
    ${following ? html`<div class="pager"><button onClick=${next}>More</button></div>` : null}<${Command}>${ctl("list_scheduled", { vhost: app.vhost })}<//><//>
  ${ask === "all" ? html`<${Confirm} title="Cancel all scheduled messages" word=${app.vhost} action="Cancel them" close=${() => setAsk(null)} commands=${[curl("DELETE", url), ctl("purge_scheduled", { vhost: app.vhost })]} doIt=${async () => { const done = await remove(url); app.toast(many(done.cancelled, "message") + " cancelled"); fresh(); }}>All messages of the virtual host that wait for their time end. They can't be had back.<//>` : null}
  ${ask && ask !== "all" ? html`<${Confirm} title="Cancel a scheduled message" action="Cancel it" close=${() => setAsk(null)} commands=${[curl("DELETE", `${url}/${ask.position}`), ctl("cancel_scheduled", { vhost: app.vhost, position: ask.position })]} doIt=${async () => { await remove(`${url}/${ask.position}`); app.toast("The message is cancelled"); fresh(); }}>The message with the key ${ask.routing_key}, due ${stamp(ask.due_ms)}, ends. It can't be had back.<//>` : null}`;
}

// A form whose fields become the value of a parameter.
function Parameter({ title, component, fields, make, close }) {
  const app = useContext(App), [form, set] = useState(Object.fromEntries(fields.map((one) => [one.key, one.value || ""]))), [failed, fail] = useState(null);
  const url = path`/api/parameters/${component}/${app.vhost}/${form.name}`, value = make(form);
  const submit = async (event) => { event.preventDefault(); try { await put(url, { value }); app.toast("Saved"); close(); } catch (error) { fail(error); } };
  return html`<${Dialog} title=${title} close=${close} wide><form class="form" onSubmit=${submit}>${fields.map((one) => html`<${Field} label=${one.label} hint=${one.hint}>${one.options ? html`<select value=${form[one.key]} onChange=${(event) => set({ ...form, [one.key]: event.target.value })}>${one.options.map((each) => html`<option>${each}</option>`)}</select>` : html`<input required=${one.needed} autocomplete="off" spellcheck="false" value=${form[one.key]} onInput=${(event) => set({ ...form, [one.key]: event.target.value })} />`}<//>`)}
    <div class="all"><${Trouble} error=${failed} /><${Command}>${ctl("set_parameter", { vhost: app.vhost, component, name: form.name, value: JSON.stringify(value) })}<//><div class="buttons"><button type="button" onClick=${close}>Cancel</button><button class="main">Save</button></div></div></form><//>`;
}

const end = (row, side) => html`${row[side + "_uri"] || ""} ${row[side + "_queue"] !== undefined ? html`<${Badge}>queue ${row[side + "_queue"]}<//>` : row[side + "_exchange"] !== undefined ? html`<${Badge}>exchange ${row[side + "_exchange"]}<//>` : null}`;
const SHOVEL = [{ key: "name", label: "Name", needed: true }, { key: "from", label: "Source", value: "amqp://", needed: true, hint: "amqp:// is this broker, as the user who saves this" }, { key: "queue", label: "Source queue", needed: true },
  { key: "to", label: "Destination", value: "amqp://", needed: true }, { key: "target", label: "Destination queue", needed: true }, { key: "mode", label: "Acks", value: "on-confirm", options: ["on-confirm", "on-publish", "no-ack"], hint: "on-confirm loses nothing" }, { key: "after", label: "Ends", value: "never", options: ["never", "queue-length"], hint: "queue-length: when what is there now is moved" }];

function Shovels() {
  const app = useContext(App), [found, error, again] = usePoll(app.watches ? "/api/shovels" : null, 2000), [ask, setAsk] = useState(null), [fresh, make] = useState(false), [failed, fail] = useState(null);
  const url = (row) => path`/api/shovels/vhost/${row.vhost}/${row.name}`;
  const restart = async (row) => { try { await remove(url(row) + "/restart"); fail(null); app.toast("It begins again"); again(); } catch (error) { fail(error); } };
  return html`<${Head} title="Shovels" sub="Each moves messages from a queue to another place, here or on another broker."><${Change} kind="main" onClick=${() => make(true)}>New shovel<//><//><${Trouble} error=${error || failed} />
  <${Card}>${app.watches ? html`<${Table} caption="Shovels" rows=${found} empty="There are no shovels." columns=${[
    { label: "Name", key: "name" }, { label: "Virtual host", key: "vhost" }, { label: "State", show: (row) => html`<${Badge} kind=${kindOf(row.state)}>${row.state}<//>${row.blocked_status === "blocked" ? html`<${Badge} kind="warn">blocked<//>` : null}` },
    { label: "From", show: (row) => end(row, "src") }, { label: "To", show: (row) => end(row, "dest") }, { label: "Moved", num: true, show: (row) => count(row.moved) }, { label: "Owner", key: "owner" }, { label: "Why", key: "reason" },
    { label: "Action", show: (row) => html`<${Change} kind="small" onClick=${() => restart(row)}>Restart<//> <${Change} kind="small danger" onClick=${() => setAsk(row)}>Delete<//>` }]} />` : html`<p class="empty">States of shovels are shown to users with the tag monitoring or administrator.</p>`}<${Command}>${ctl("shovel_status")}<//><//>
  ${fresh ? html`<${Parameter} title=${`New shovel in ${app.vhost}`} component="shovel" fields=${SHOVEL} close=${() => { make(false); again(); }} make=${(form) => ({ "src-uri": form.from, "src-queue": form.queue, "dest-uri": form.to, "dest-queue": form.target, "ack-mode": form.mode, "src-delete-after": form.after })} />` : null}
  ${ask ? html`<${Confirm} title="Delete the shovel" word=${ask.name} action="Delete" close=${() => setAsk(null)} commands=${[curl("DELETE", url(ask)), ctl("delete_shovel", { vhost: ask.vhost, name: ask.name })]} doIt=${async () => { await remove(url(ask)); again(); }}>It moves nothing more. Queues and messages stay.<//>` : null}`;
}

const UPSTREAM = [{ key: "name", label: "Name", needed: true }, { key: "uri", label: "URI", value: "amqp://user:password@host/%2F", needed: true }, { key: "hops", label: "Hops at most", value: "1" }, { key: "mode", label: "Acks", value: "on-confirm", options: ["on-confirm", "on-publish", "no-ack"] }];

function Federation() {
  const app = useContext(App), maker = app.may("policymaker"), [ask, setAsk] = useState(null), [fresh, make] = useState(false), [failed, fail] = useState(null);
  const [links, error, again] = usePoll(app.watches ? "/api/federation-links" : null, 2000), [upstreams, wrong, look] = usePoll(maker ? path`/api/parameters/federation-upstream/${app.vhost}` : null, 5000);
  const restart = async (row) => { try { await remove(path`/api/federation-links/vhost/${row.vhost}/${row.id}/restart`); fail(null); app.toast("It begins again"); again(); } catch (error) { fail(error); } };
  const url = (row) => path`/api/parameters/federation-upstream/${row.vhost}/${row.name}`;
  return html`<${Head} title="Federation" sub="Exchanges and queues that get messages of other brokers. A policy says which do, an upstream from where."><${Change} kind="main" onClick=${() => make(true)}>New upstream<//><//><${Trouble} error=${error || wrong || failed} />
  <${Card} title="Links">${app.watches ? html`<${Table} caption="Links" rows=${links} empty="No policy federates anything. Apply one with federation-upstream-set: all." columns=${[
    { label: "What", show: (row) => html`<${Badge}>${row.type}<//> ${row[row.type]}` }, { label: "Virtual host", key: "vhost" }, { label: "Upstream", key: "upstream" }, { label: "From", key: "uri" }, { label: "State", show: (row) => html`<${Badge} kind=${kindOf(row.status)}>${row.status}<//>` },
    { label: "Moved", num: true, show: (row) => count(row.moved) }, { label: "Why", key: "error" }, { label: "Action", show: (row) => html`<${Change} kind="small" onClick=${() => restart(row)}>Restart<//>` }]} />` : html`<p class="empty">Links are shown to users with the tag monitoring or administrator.</p>`}<${Command}>${ctl("federation_status")}<//><//>
  <${Card} title=${`Upstreams of ${app.vhost}`}>${maker ? html`<${Table} caption="Upstreams" rows=${upstreams} empty="There are none." columns=${[{ label: "Name", key: "name" }, { label: "URI", show: (row) => html`<code>${text(row.value.uri)}</code>` }, { label: "Settings", show: (row) => Object.entries(row.value).filter(([key]) => key !== "uri").map(([key, value]) => html`<${Badge}>${key}: ${text(value)}<//>`) },
    { label: "Action", show: (row) => html`<${Change} kind="small danger" onClick=${() => setAsk(row)}>Delete<//>` }]} />` : html`<p class="empty">Upstreams are shown to users with the tag policymaker or administrator.</p>`}<${Command}>${ctl("list_parameters")}<//><//>
  ${fresh ? html`<${Parameter} title=${`New upstream of ${app.vhost}`} component="federation-upstream" fields=${UPSTREAM} close=${() => { make(false); look(); }} make=${(form) => ({ uri: form.uri, "max-hops": Number(form.hops), "ack-mode": form.mode })} />` : null}
  ${ask ? html`<${Confirm} title="Delete the upstream" word=${ask.name} action="Delete" close=${() => setAsk(null)} commands=${[curl("DELETE", url(ask)), ctl("clear_parameter", { vhost: ask.vhost, component: "federation-upstream", name: ask.name })]} doIt=${async () => { await remove(url(ask)); look(); again(); }}>Its links end, and what they made at the other broker goes.<//>` : null}`;
}

export const pages = { schedules: Schedules, shovels: Shovels, federation: Federation };
