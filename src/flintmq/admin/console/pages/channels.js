// Channels of all connections.
import { html, Head, Card, Table, Trouble, Pager, many, useList, usePage } from "../ui.js";
import { CHANNELS } from "./connections.js";

function Channels() {
  const list = useList("/api/channels"), [found, error] = usePage(list, 3000);
  return html`<${Head} title="Channels" sub=${found ? many(found.total_count, "channel") : ""}>${list.filter}<//><${Trouble} error=${error} />
  <${Card}><${Table} caption="Channels" rows=${found && found.items} columns=${CHANNELS} sort=${list.sort} onSort=${list.onSort} empty="No channel is open." />${found ? html`<${Pager} page=${found.page} pages=${found.page_count} total=${found.total_count} filtered=${found.filtered_count} go=${list.go} />` : null}<//>`;
}

export const pages = { channels: Channels };
