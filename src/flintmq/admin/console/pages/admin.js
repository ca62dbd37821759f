// Users, permissions, policies, virtual hosts, limits, definitions.
import { html, App, Head, Badge, count, parsed, text, useContext, useQuery } from "../ui.js";
import { path } from "../api.js";
import { ctl } from "../commands.js";
import { Things } from "../things.js";
import { Definitions } from "../definitions.js";

const tagsOf = (tags) => [].concat(tags || []).flatMap((one) => String(one).split(",")).map((one) => one.trim()).filter(Boolean);
const code = (value) => html`<code>${text(value)}</code>`;
const vhostField = (vhost) => ({ key: "vhost", label: "Virtual host", value: vhost, needed: true, fixed: true });

const Users = () => html`<${Things} url="/api/users" caption="Users" thing="user" once columns=${[{ label: "Name", key: "name" }, { label: "Tags", show: (row) => tagsOf(row.tags).map((one) => html`<${Badge} kind=${one === "administrator" ? "warn" : ""}>${one}<//>`) }, { label: "Password", show: (row) => code(row.password_hash ? row.hashing_algorithm || "" : "none") }]}
  fields=${[{ key: "name", label: "Name", needed: true, fixed: true }, { key: "password", label: "Password", type: "password", needed: true, later: "Empty: the password stays" }, { key: "tags", label: "Tags", hint: "administrator, monitoring, policymaker, management" }]}
  make=${(form, row) => {
    const tags = tagsOf(form.tags), kept = row && !form.password ? { password_hash: row.password_hash, hashing_algorithm: row.hashing_algorithm } : { password: form.password };
    const retagged = ctl("set_user_tags", { user: form.name, tags }), commands = row ? [form.password ? ctl("change_password", { user: form.name }) : "", tagsOf(row.tags).join() === tags.join() ? "" : retagged] : [ctl("add_user", { user: form.name }), tags.length ? retagged : ""];
    return { url: path`/api/users/${form.name}`, body: { ...kept, tags: tags.join(",") }, command: commands.filter(Boolean).join(" && ") || ctl("set_user_tags", { user: form.name, tags }) };
  }} edited=${(row) => ({ name: row.name, password: "", tags: tagsOf(row.tags).join(", ") })} gone=${(row) => ({ url: path`/api/users/${row.name}`, word: row.name, text: "The user goes with its permissions, and its connections and sessions are closed.", command: ctl("delete_user", { user: row.name }) })} />`;

function Permissions() {
  const { vhost } = useContext(App), patterns = (all) => all.map((key) => ({ key, label: key[0].toUpperCase() + key.slice(1), value: ".*" }));
  return html`<${Things} url="/api/permissions" caption="Permissions" thing="permission" sub="Patterns are regular expressions on names of queues and exchanges." columns=${[{ label: "User", key: "user" }, { label: "Virtual host", key: "vhost" }, ...["configure", "write", "read"].map((key) => ({ label: key, show: (row) => code(row[key]) }))]}
    fields=${[{ key: "user", label: "User", needed: true, fixed: true }, vhostField(vhost), ...patterns(["configure", "write", "read"])]} edited=${(row) => ({ ...row })}
    make=${(form) => ({ url: path`/api/permissions/${form.vhost}/${form.user}`, body: { configure: form.configure, write: form.write, read: form.read }, command: ctl("set_permissions", form) })} gone=${(row) => ({ url: path`/api/permissions/${row.vhost}/${row.user}`, text: `${row.user} may not use ${row.vhost} any more.`, command: ctl("clear_permissions", row) })} />
  <${Things} url="/api/topic-permissions" caption="Topic permissions" thing="topic permission" sub="Patterns on routing keys of a topic exchange. An exchange without any is bound by the permissions above alone." columns=${[{ label: "User", key: "user" }, { label: "Virtual host", key: "vhost" }, { label: "Exchange", key: "exchange" }, ...["write", "read"].map((key) => ({ label: key, show: (row) => code(row[key]) }))]}
    fields=${[{ key: "user", label: "User", needed: true, fixed: true }, vhostField(vhost), { key: "exchange", label: "Exchange", value: "amq.topic", needed: true, fixed: true }, ...patterns(["write", "read"])]} edited=${(row) => ({ ...row })}
    make=${(form) => ({ url: path`/api/topic-permissions/${form.vhost}/${form.user}`, body: { exchange: form.exchange, write: form.write, read: form.read }, command: ctl("set_topic_permissions", form) })} gone=${(row) => ({ url: path`/api/topic-permissions/${row.vhost}/${row.user}/${row.exchange}`, text: `The routing keys of ${row.user} at ${row.exchange} are not bounded any more.` })} />`;
}

// Policies, and those of operators, which a policy can't go beyond.
function PolicyList({ caption, thing, all, one, to, verb, sub, definition }) {
  const { vhost } = useContext(App);
  return html`<${Things} url=${all} caption=${caption} thing=${thing} sub=${sub} columns=${[{ label: "Name", key: "name" }, { label: "Virtual host", key: "vhost" }, { label: "Pattern", show: (row) => code(row.pattern) }, { label: "Applies to", key: "apply-to" }, { label: "Definition", show: (row) => code(row.definition) }, { label: "Priority", num: true, key: "priority" }]}
    fields=${[{ key: "name", label: "Name", needed: true, fixed: true }, vhostField(vhost), { key: "pattern", label: "Pattern", value: "^", needed: true }, { key: "to", label: "Applies to", value: "queues", options: to }, { key: "definition", label: "Definition (JSON)", value: definition, needed: true }, { key: "priority", label: "Priority", value: "0", type: "number" }]}
    edited=${(row) => ({ name: row.name, vhost: row.vhost, pattern: row.pattern, to: row["apply-to"], definition: JSON.stringify(row.definition), priority: String(row.priority) })}
    make=${(form) => { const given = parsed(form.definition); return given ? { url: one(form), body: { pattern: form.pattern, "apply-to": form.to, definition: given, priority: Number(form.priority) }, command: ctl(verb, form) } : { error: { message: "The definition is no JSON object." } }; }}
    gone=${(row) => ({ url: one(row), word: row.name, text: "Queues and exchanges follow at once.", command: ctl(verb.replace("set", "clear"), row) })} />`;
}
const Policies = () => html`<${PolicyList} caption="Policies" thing="policy" all="/api/policies" one=${(row) => path`/api/policies/${row.vhost}/${row.name}`} to=${["queues", "exchanges", "all"]} verb="set_policy" definition='{"max-length": 1000}' /><${PolicyList} caption="Operator policies" thing="operator policy" all="/api/operator-policies" one=${(row) => path`/api/operator-policies/${row.vhost}/${row.name}`} to=${["queues"]} verb="set_operator_policy" definition='{"max-length": 100000}' sub="Bounds that no policy and no argument of a queue goes beyond." />`;

const Vhosts = () => html`<${Things} url="/api/vhosts" caption="Virtual hosts" thing="virtual host" once columns=${[{ label: "Name", key: "name" }, { label: "Description", key: "description" }, { label: "Messages", num: true, show: (row) => count(row.messages) }]} fields=${[{ key: "name", label: "Name", needed: true, fixed: true }, { key: "description", label: "Description" }]}
  edited=${(row) => ({ name: row.name, description: row.description })} make=${(form) => ({ url: path`/api/vhosts/${form.name}`, body: { description: form.description }, command: form.description ? "" : ctl("add_vhost", { vhost: form.name }) })} gone=${(row) => ({ url: path`/api/vhosts/${row.name}`, word: row.name, text: "Everything in it ends: queues, messages, exchanges, permissions, connections.", command: ctl("delete_vhost", { vhost: row.name }) })} />`;

// Limits: one row for each, of a virtual host or of a user.
function LimitList({ of, all, one, caption, label, names, first }) {
  return html`<${Things} url=${all} caption=${caption} thing=${`limit of a ${label.toLowerCase()}`} rowsOf=${(all) => all.flatMap((one) => Object.entries(one.value || {}).map(([limit, value]) => ({ [of]: one[of], limit, value })))} columns=${[{ label, key: of }, { label: "Limit", key: "limit" }, { label: "Value", num: true, show: (row) => count(row.value) }]}
    fields=${[{ key: of, label, value: first, needed: true, fixed: true }, { key: "limit", label: "Limit", value: names[0], options: names, fixed: true }, { key: "value", label: "Value", type: "number", needed: true, hint: "-1: any number" }]} edited=${(row) => ({ ...row, value: String(row.value) })}
    make=${(form) => ({ url: one(form), body: { value: Number(form.value) }, command: ctl(`set_${of}_limit`, form) })} gone=${(row) => ({ url: one(row), text: `${row[of]} has no ${row.limit} any more.`, command: ctl(`clear_${of}_limit`, row) })} />`;
}
function Limits() {
  const { vhost } = useContext(App);
  return html`<${LimitList} of="vhost" all="/api/vhost-limits" one=${(row) => path`/api/vhost-limits/${row.vhost}/${row.limit}`} caption="Limits of virtual hosts" label="Virtual host" first=${vhost} names=${["max-connections", "max-queues", "max-exchanges", "max-bindings"]} /><${LimitList} of="user" all="/api/user-limits" one=${(row) => path`/api/user-limits/${row.user}/${row.limit}`} caption="Limits of users" label="User" first="" names=${["max-connections", "max-channels", "max-consumers"]} />`;
}

const PARTS = { users: ["Users", Users], permissions: ["Permissions", Permissions], policies: ["Policies", Policies], vhosts: ["Virtual hosts", Vhosts], limits: ["Limits", Limits], definitions: ["Definitions", Definitions] };

function Admin() {
  const [{ part }, change] = useQuery({ part: "users" }), shown = Object.hasOwn(PARTS, part) ? part : "users", Part = PARTS[shown][1];
  return html`<${Head} title="Admin" /><div class="tabs" role="tablist" aria-label="Parts">${Object.entries(PARTS).map(([key, [label]]) => html`<button role="tab" aria-selected=${shown === key} onClick=${() => change({ part: key })}>${label}</button>`)}</div><${Part} key=${shown} />`;
}

export const pages = { admin: Admin };
