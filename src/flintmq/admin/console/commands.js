// The commands that the console shows: each works as it is shown, on a shell, for this broker and this user. The table is JSON, in the order
// in which a test runs it (tests/admin/test_console_commands.py); {name} is a value, quoted for a shell, {$NAME} a variable of the shell.
const COMMANDS = {
  "add_vhost": ["add_vhost", "{vhost}"],
  "add_user": ["add_user", "{user}", "{$NEW_PASSWORD}"],
  "set_user_tags": ["set_user_tags", "{user}", "{...tags}"],
  "change_password": ["change_password", "{user}", "{$NEW_PASSWORD}"],
  "set_permissions": ["-p", "{vhost}", "set_permissions", "{user}", "{configure}", "{write}", "{read}"],
  "set_topic_permissions": ["-p", "{vhost}", "set_topic_permissions", "{user}", "{exchange}", "{write}", "{read}"],
  "set_policy": ["-p", "{vhost}", "set_policy", "--priority", "{priority}", "--apply-to", "{to}", "{name}", "{pattern}", "{definition}"],
  "set_operator_policy": ["-p", "{vhost}", "set_operator_policy", "--priority", "{priority}", "--apply-to", "{to}", "{name}", "{pattern}", "{definition}"],
  "set_vhost_limit": ["-p", "{vhost}", "set_vhost_limit", "{limit}", "{value}"],
  "set_user_limit": ["set_user_limit", "{user}", "{limit}", "{value}"],
  "set_parameter": ["-p", "{vhost}", "set_parameter", "{component}", "{name}", "{value}"],
  "list_parameters": ["list_parameters"],
  "list_queues": ["-p", "{vhost}", "list_queues", "name", "messages", "consumers"],
  "list_connections": ["list_connections", "name", "user", "state"],
  "list_scheduled": ["-p", "{vhost}", "list_scheduled"],
  "shovel_status": ["shovel_status"],
  "federation_status": ["federation_status"],
  "pause_queue": ["-p", "{vhost}", "pause_queue", "{queue}"],
  "resume_queue": ["-p", "{vhost}", "resume_queue", "{queue}"],
  "purge_queue": ["-p", "{vhost}", "purge_queue", "{queue}"],
  "delete_queue": ["-p", "{vhost}", "delete_queue", "{queue}"],
  "cancel_scheduled": ["-p", "{vhost}", "cancel_scheduled", "{position}"],
  "purge_scheduled": ["-p", "{vhost}", "purge_scheduled"],
  "close_connection": ["close_connection", "{connection}", "{reason}"],
  "export_definitions": ["export_definitions", "definitions.json"],
  "import_definitions": ["import_definitions", "definitions.json"],
  "delete_shovel": ["-p", "{vhost}", "delete_shovel", "{name}"],
  "clear_parameter": ["-p", "{vhost}", "clear_parameter", "{component}", "{name}"],
  "clear_vhost_limit": ["-p", "{vhost}", "clear_vhost_limit", "{limit}"],
  "clear_user_limit": ["clear_user_limit", "{user}", "{limit}"],
  "clear_operator_policy": ["-p", "{vhost}", "clear_operator_policy", "{name}"],
  "clear_policy": ["-p", "{vhost}", "clear_policy", "{name}"],
  "clear_permissions": ["-p", "{vhost}", "clear_permissions", "{user}"],
  "delete_user": ["delete_user", "{user}"],
  "delete_vhost": ["delete_vhost", "{vhost}"]
};

// Control characters of a name would be keys that somebody presses: they are written as escapes.
const CONTROL = /[\u0000-\u001f\u007f-\u009f]/g;
const escaped = (one) => (one < "\u0080" ? "\\x" : "\\u00") + one.charCodeAt(0).toString(16).padStart(2, "0");
export function quoted(text) {
  const plain = String(text);
  if (plain.search(CONTROL) < 0) return "'" + plain.replaceAll("'", "'\\''") + "'";
  return "$'" + plain.replaceAll("\\", "\\\\").replaceAll("'", "\\'").replace(CONTROL, escaped) + "'";
}
const word = (text) => (/^[\w./:=,+@-]+$/.test(text) ? text : quoted(text));

let user = "guest";
export function setCommandUser(name) { user = name; }

// A command of the table. Args: values: of its names. The password is read from FLINTMQ_PASSWORD: others see arguments of a command.
export function ctl(command, values = {}) {
  const words = [];
  COMMANDS[command].forEach((one, index, row) => {
    if (one.startsWith("{$")) return words.push(`"$${one.slice(2, -1)}"`);
    if (!one.startsWith("{")) return words.push(one);
    const given = one.startsWith("{...") ? values[one.slice(4, -1)] : [String(values[one.slice(1, -1)])];
    // a name that begins with a dash would be an option
    if (!row[index - 1].startsWith("-") && !words.includes("--") && given.some((text) => text.startsWith("-"))) words.push("--");
    return words.push(...given.map(word));
  });
  return ["flintmq ctl --uri", word(location.origin), "-u", word(user), ...words].join(" ");
}

// The same call over HTTP; curl asks for the password.
export function curl(method, url, body, headers = {}) {
  const parts = ["curl", "-u", quoted(user)];
  if (method !== "GET") parts.push("-X", method);
  for (const [key, value] of Object.entries(headers)) parts.push("-H", quoted(`${key}: ${value}`));
  if (body !== undefined) parts.push("-H", quoted("content-type: application/json"), "-d", quoted(JSON.stringify(body)));
  else if (method === "POST") parts.push("-H", quoted("x-flintmq-request: 1"));
  parts.push(quoted(location.origin + url));
  return parts.join(" ");
}

// What the broker knows of Spark's readers and writers, over its data plane.
export const pipeline = (port) => ["flintmq pipeline status --host", word(location.hostname), "--flight-port", port, "--user", word(user)].join(" ");
