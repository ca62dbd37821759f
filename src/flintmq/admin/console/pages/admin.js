// Users, permissions, policies, virtual hosts, limits.
import { html, useContext, useState, App, Head, Card, Badge, Table, Trouble, Confirm, Change, Command, Dialog, Field, text, usePoll } from "../ui.js";
import { path, curl, ctl, put, remove, post } from "../api.js";

const PARTS = [["users", "Users"], ["permissions", "Permissions"], ["policies", "Policies"], ["vhosts", "Virtual hosts"], ["limits", "Limits"]];

function Admin() {
  const [part, show] = useState("users");
  const Part = { users: Users, permissions: Permissions, policies: Policies, vhosts: Vhosts, limits: Limits }[part];
  return html`<${Head} title="Admin" /><div class="tabs" role="tablist" aria-label="Parts">${PARTS.map(([key, label]) => html`<button role="tab" aria-selected=${part === key} onClick=${() => show(key)}>${label}</button>`)}</div><${Part} key=${part} />`;
}

// A list with a form for a new one, and a way to delete each.
function Things({ url, caption, columns, fields, make, gone, sub }) {
  const app = useContext(App), [found, error, again] = usePoll(url, 5000), [ask, setAsk] = useState(null), [form, set] = useState(null), [failed, fail] = useState(null);
  const made = form ? make(form, app) : null;
  const submit = async (event) => { event.preventDefault(); try { await put(made.url, made.body); app.toast("Saved"); set(null); again(); } catch (error) { fail(error); } };
  const rows = found && (Array.isArray(found) ? found : found.items || []);
  return html`<${Card} title=${caption} tools=${html`<${Change} kind="main" onClick=${() => { fail(null); set(Object.fromEntries(fields.map((one) => [one.key, one.value || ""]))); }}>New<//>`}>${sub ? html`<p class="sub">${sub}</p>` : null}<${Trouble} error=${error} />
    <${Table} caption=${caption} rows=${rows} columns=${[...columns, { label: "Action", show: (row) => html`<${Change} kind="small danger" onClick=${() => setAsk(row)}>Delete<//>` }]} /><//>
  ${form ? html`<${Dialog} title=${`New: ${caption.toLowerCase()}`} close=${() => set(null)}><form class="form" onSubmit=${submit}>${fields.map((one) => html`<${Field} label=${one.label} hint=${one.hint}><input type=${one.type || "text"} required=${one.needed} autocomplete="off" value=${form[one.key]} onInput=${(event) => set({ ...form, [one.key]: event.target.value })} /><//>`)}
    <div class="all"><${Trouble} error=${failed || made.error} />${made.error ? null : html`<${Command}>${made.command || curl("PUT", made.url, made.body)}<//>`}<div class="buttons"><button type="button" onClick=${() => set(null)}>Cancel</button><button class="main" disabled=${!!made.error}>Save</button></div></div></form><//>` : null}
  ${ask ? html`<${Confirm} title="Delete" word=${gone(ask).word} action="Delete" close=${() => setAsk(null)} commands=${[curl("DELETE", gone(ask).url)]} doIt=${async () => { await remove(gone(ask).url); again(); }}>${gone(ask).text}<//>` : null}`;
}

const Users = () => html`<${Things} url="/api/users" caption="Users" columns=${[{ label: "Name", key: "name" }, { label: "Tags", show: (row) => [].concat(row.tags || []).flatMap((one) => String(one).split(",")).filter(Boolean).map((one) => html`<${Badge} kind=${one === "administrator" ? "warn" : ""}>${one}<//>`) }, { label: "Password", show: (row) => html`<code>${row.hashing_algorithm || "none"}</code>` }]}
  fields=${[{ key: "name", label: "Name", needed: true }, { key: "password", label: "Password", type: "password", needed: true }, { key: "tags", label: "Tags", hint: "administrator, monitoring, policymaker, management" }]}
  make=${(form) => ({ url: path`/api/users/${form.name}`, body: { password: form.password, tags: form.tags }, command: ctl("add_user", form.name, "PASSWORD") })} gone=${(row) => ({ url: path`/api/users/${row.name}`, word: row.name, text: "The user goes with its permissions, and its connections are closed." })} />`;

const Permissions = () => html`<${Things} url="/api/permissions" caption="Permissions" sub="Patterns are regular expressions on names of queues and exchanges." columns=${[{ label: "User", key: "user" }, { label: "Virtual host", key: "vhost" }, ...["configure", "write", "read"].map((key) => ({ label: key, show: (row) => html`<code>${row[key]}</code>` }))]}
  fields=${[{ key: "user", label: "User", needed: true }, { key: "vhost", label: "Virtual host", value: "/", needed: true }, { key: "configure", label: "Configure", value: ".*" }, { key: "write", label: "Write", value: ".*" }, { key: "read", label: "Read", value: ".*" }]}
  make=${(form) => ({ url: path`/api/permissions/${form.vhost}/${form.user}`, body: { configure: form.configure, write: form.write, read: form.read }, command: ctl("set_permissions", "-p", form.vhost, form.user, form.configure, form.write, form.read) })} gone=${(row) => ({ url: path`/api/permissions/${row.vhost}/${row.user}`, text: `${row.user} may not use ${row.vhost} any more.` })} />`;

const Policies = () => html`<${Things} url="/api/policies" caption="Policies" columns=${[{ label: "Name", key: "name" }, { label: "Virtual host", key: "vhost" }, { label: "Pattern", show: (row) => html`<code>${row.pattern}</code>` }, { label: "Applies to", key: "apply-to" }, { label: "Definition", show: (row) => html`<code>${text(row.definition)}</code>` }, { label: "Priority", num: true, key: "priority" }]}
  fields=${[{ key: "name", label: "Name", needed: true }, { key: "vhost", label: "Virtual host", value: "/", needed: true }, { key: "pattern", label: "Pattern", value: "^", needed: true }, { key: "to", label: "Applies to", value: "queues", hint: "queues, exchanges or all" }, { key: "definition", label: "Definition (JSON)", value: '{"max-length": 1000}', needed: true }, { key: "priority", label: "Priority", value: "0", type: "number" }]}
  make=${(form) => { try { return { url: path`/api/policies/${form.vhost}/${form.name}`, body: { pattern: form.pattern, "apply-to": form.to, definition: JSON.parse(form.definition), priority: Number(form.priority) }, command: ctl("-p", form.vhost, "set_policy", form.name, form.pattern, form.definition) }; } catch { return { error: { message: "The definition is no JSON." } }; } }} gone=${(row) => ({ url: path`/api/policies/${row.vhost}/${row.name}`, word: row.name, text: "Queues and exchanges follow at once." })} />`;

const Vhosts = () => html`<${Things} url="/api/vhosts" caption="Virtual hosts" columns=${[{ label: "Name", key: "name" }, { label: "Description", key: "description" }, { label: "Messages", num: true, key: "messages" }]} fields=${[{ key: "name", label: "Name", needed: true }, { key: "description", label: "Description" }]}
  make=${(form) => ({ url: path`/api/vhosts/${form.name}`, body: { description: form.description }, command: ctl("add_vhost", form.name) })} gone=${(row) => ({ url: path`/api/vhosts/${row.name}`, word: row.name, text: "Everything in it ends: queues, messages, exchanges, permissions, connections." })} />`;

function Limits() {
  const [users] = usePoll("/api/user-limits", 5000);
  return html`<${Things} url="/api/vhost-limits" caption="Limits of virtual hosts" columns=${[{ label: "Virtual host", key: "vhost" }, { label: "Limits", show: (row) => Object.entries(row.value || {}).map(([key, value]) => html`<${Badge}>${key}: ${text(value)}<//>`) }]}
    fields=${[{ key: "vhost", label: "Virtual host", value: "/", needed: true }, { key: "limit", label: "Limit", value: "max-queues", hint: "max-connections or max-queues", needed: true }, { key: "value", label: "Value", type: "number", needed: true }]}
    make=${(form) => ({ url: path`/api/vhost-limits/${form.vhost}/${form.limit}`, body: { value: Number(form.value) } })} gone=${(row) => ({ url: path`/api/vhost-limits/${row.vhost}/${Object.keys(row.value || {})[0] || ""}`, text: "The first of its limits is taken away." })} />
  <${Card} title="Limits of users"><${Table} caption="Limits of users" rows=${users} columns=${[{ label: "User", key: "user" }, { label: "Limits", show: (row) => Object.entries(row.value || {}).map(([key, value]) => html`<${Badge}>${key}: ${text(value)}<//>`) }]} empty="None." /><${Command}>${ctl("set_user_limits", "USER", '{"max-channels": 100}')}<//><//>`;
}

export const pages = { admin: Admin };
