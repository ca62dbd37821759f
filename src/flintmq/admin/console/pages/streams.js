// Streams and their consumer groups: how far each is, what it holds, how even the work is.
import { html, useContext, useState, App, Head, Card, Badge, Link, Empty, Table, Trouble, Change, Command, Dialog, Field, count, bytes, usePoll } from "../ui.js";
import { name, path, put } from "../api.js";
import { curl } from "../commands.js";

// Another place for a group: messages come again, or are passed over.
function Move({ vhost, queue, group, close }) {
  const app = useContext(App), [form, set] = useState({ to: "first", offset: String(group.next) }), [failed, fail] = useState(null);
  const url = path`/api/v1/queues/${vhost}/${queue}/groups/${group.group}/offset`, body = { offset: form.to === "offset" ? Number(form.offset) : form.to };
  const submit = async (event) => { event.preventDefault(); try { const done = await put(url, body); app.toast(`The group stands at offset ${done.offset}`); close(); } catch (error) { fail(error); } };
  return html`<${Dialog} title="Reset the group" close=${close}><form onSubmit=${submit}><p class="ask">Group ${group.group} of ${queue}. Messages in front of the place are passed over; those behind it come, some of them once more. A group with members is not moved: stop them first.</p>
    <div class="form"><${Field} label="Place"><select value=${form.to} onChange=${(event) => set({ ...form, to: event.target.value })}><option value="first">the first message</option><option value="last">the last message</option><option value="next">after the last message</option><option value="offset">an offset</option></select><//>
    ${form.to === "offset" ? html`<${Field} label="Offset"><input type="number" min="0" max="9007199254740991" required value=${form.offset} onInput=${(event) => set({ ...form, offset: event.target.value })} /><//>` : null}</div>
    <${Trouble} error=${failed} /><${Command}>${curl("PUT", url, body)}<//><div class="buttons"><button type="button" onClick=${close}>Cancel</button><button class="danger">Reset</button></div></form><//>`;
}

function Streams() {
  const app = useContext(App), [ask, setAsk] = useState(null), url = path`/api/v1/vhosts/${app.vhost}/groups`;
  const [found, error, again] = usePoll(url, 2000);
  return html`<${Head} title="Streams & groups" sub="A group is a set of consumers that share one place in a stream." /><${Trouble} error=${error} />
  ${found && !found.streams.length ? html`<${Card}><${Empty}>There are no streams in ${app.vhost}. Declare a queue with x-queue-type=stream.<//><//>` : null}
  ${((found && found.streams) || []).map((one) => html`<${Card} title=${html`<${Link} to=${`/queue/${name(app.vhost)}/${name(one.queue)}`}>${one.queue}<//>`} tools=${html`<span>${one.fairness !== null ? html`<${Badge} kind=${one.fairness > 0.8 ? "good" : "warn"}>fairness of groups ${one.fairness}<//>` : null}<${Badge}>offsets ${count(one.first_offset)} to ${count(one.next_offset)}<//><${Badge}>${bytes(one.bytes)}<//></span>`}>
    <${Table} caption="Consumer groups" rows=${one.groups} empty="No group reads this stream." columns=${[
      { label: "Group", key: "group" }, { label: "Members", num: true, show: (row) => count(row.members) }, { label: "Lag", num: true, show: (row) => html`<${Badge} kind=${row.lag > 10000 ? "warn" : "good"}>${count(row.lag)}<//>` },
      { label: "Progress", show: (row) => html`<progress aria-label="Read so far" max=${Math.max(1, one.next_offset - one.first_offset)} value=${Math.max(0, row.next - one.first_offset)}></progress>` }, { label: "In flight", num: true, show: (row) => count(row.in_flight) },
      { label: "Acked", num: true, show: (row) => count(row.acked) }, { label: "Again", num: true, show: (row) => count(row.redelivered) }, { label: "Lost to retention", num: true, show: (row) => (row.lost ? html`<${Badge} kind="bad">${count(row.lost)}<//>` : "0") },
      { label: "Hints", show: (row) => (row.full_waits && row.in_flight > 1000 ? html`<${Badge} kind="warn">hoards: waits for its oldest<//>` : row.members === 0 && row.lag ? html`<${Badge} kind="warn">nobody reads<//>` : "") },
      { label: "Action", show: (row) => html`<${Change} kind="small" onClick=${() => setAsk({ queue: one.queue, group: row })}>Reset offset<//>` }]} /><//>`)}
  <${Command}>${curl("GET", url)}<//>${ask ? html`<${Move} vhost=${app.vhost} queue=${ask.queue} group=${ask.group} close=${() => { setAsk(null); again(); }} />` : null}`;
}

export const pages = { streams: Streams };
