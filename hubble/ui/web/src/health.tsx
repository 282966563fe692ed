import { useEffect, useState } from "preact/hooks";
import { get } from "./detail";
import { perSecond } from "./model";
import type { Store } from "./store";

type Node = {
  name: string;
  version: string;
  address: string;
  state: string;
  tls: boolean;
  uptime: number;
  seen: number;
  flows: number;
  maxFlows: number;
};
type BPFMap = { name: string; type: string; entries: number; maxEntries: number; bytes: number; note?: string };
type Feature = { name: string; state: string; chosen?: string; why?: string };
type Health = {
  server: {
    target: string;
    version: string;
    uptime: number;
    flows: number;
    maxFlows: number;
    seen: number;
    rate: number;
    away: number;
  };
  serverError?: string;
  nodes: Node[];
  nodesError?: string;
  socket: string;
  maps?: BPFMap[];
  status?: { node: string; state: string; features: Feature[] };
  mapsError?: string;
};

const askEvery = 5000;

export function HealthView({ store }: { store: Store }) {
  const [health, setHealth] = useState<Health | null>(null);
  const [error, setError] = useState("");
  useEffect(() => {
    const abort = new AbortController();
    const ask = () => {
      if (document.hidden) return;
      get<Health>("/api/health", abort.signal).then(
        (h) => {
          setHealth(h);
          setError("");
        },
        (e: Error) => {
          if (!abort.signal.aborted) setError(e.message);
        },
      );
    };
    ask();
    const timer = setInterval(ask, askEvery);
    return () => {
      clearInterval(timer);
      abort.abort();
    };
  }, []);
  return (
    <main id="main" class="health" tabIndex={0} aria-label="Health">
      <h2>Health</h2>
      {error && (
        <p class="error" role="alert">
          {error}
        </p>
      )}
      {!health && !error && <p class="empty">Asking…</p>}
      {health && (
        <>
          <ServerLine health={health} />
          <Nodes nodes={health.nodes} error={health.nodesError} />
          <Losses store={store} />
          <AgentStatus health={health} />
          <Maps health={health} />
        </>
      )}
    </main>
  );
}

function ServerLine({ health: { server: s, serverError } }: { health: Health }) {
  if (serverError) return <p class="error">{serverError}</p>;
  return (
    <p>
      {s.target}: {s.version}, up {duration(s.uptime)}, {s.flows.toLocaleString("en")} of{" "}
      {s.maxFlows.toLocaleString("en")} flows kept, {s.seen.toLocaleString("en")} seen, {perSecond(s.rate)}
      {s.away > 0 && <span class="badge red">✕ {s.away} nodes away</span>}
    </p>
  );
}

function Nodes({ nodes, error }: { nodes: Node[]; error?: string }) {
  if (error) return <p class="error">Nodes: {error}</p>;
  return (
    <table class="list" id="nodes">
      <caption>Nodes</caption>
      <thead>
        <tr>
          <th scope="col">Node</th>
          <th scope="col">State</th>
          <th scope="col">Version</th>
          <th scope="col">Address</th>
          <th scope="col">Up</th>
          <th scope="col" class="number">
            Flows seen
          </th>
          <th scope="col">Flows kept</th>
        </tr>
      </thead>
      <tbody>
        {nodes.map((n) => {
          const state = n.state
            .replace(/^NODE_/, "")
            .replace("UNKNOWN_NODE_STATE", "unknown")
            .toLowerCase();
          const good = state === "connected";
          return (
            <tr key={n.name} class={good ? "" : "denied"}>
              <th scope="row">{n.name}</th>
              <td>
                <span class={`badge ${good ? "ok" : "red"}`}>
                  {good ? "✓" : "✕"} {state}
                </span>
              </td>
              <td>{n.version}</td>
              <td>
                {n.address}
                {n.tls ? ", TLS" : ""}
              </td>
              <td>{duration(n.uptime)}</td>
              <td class="number">{n.seen.toLocaleString("en")}</td>
              <td>
                <Fill value={n.flows} max={n.maxFlows} what={`flows of ${n.name}`} />
              </td>
            </tr>
          );
        })}
      </tbody>
    </table>
  );
}

function Losses({ store }: { store: Store }) {
  const lost = [...store.lost.values()];
  return (
    <section aria-label="What is missing">
      <h3>What is missing</h3>
      {lost.length + store.skipped + store.edgesLeftOut + store.nodeStates.length === 0 && <p>Nothing so far.</p>}
      <ul>
        {store.skipped > 0 && (
          <li>
            {store.skipped.toLocaleString("en")} flows not in the table: this browser was too slow. The map counts
            them.
          </li>
        )}
        {store.edgesLeftOut > 0 && <li>{store.edgesLeftOut.toLocaleString("en")} flows of too many connections.</li>}
        {lost.map((l) => (
          <li key={`${l.node} ${l.source}`}>
            {l.node}: {l.count.toLocaleString("en")} events lost ({l.source})
          </li>
        ))}
        {store.nodeStates.map((n, i) => (
          <li key={i}>
            {n.state}: {(n.names ?? []).join(", ")} {n.message}
          </li>
        ))}
      </ul>
    </section>
  );
}

function AgentStatus({ health: { status } }: { health: Health }) {
  if (!status) return null;
  const notable = status.features.filter((f) => f.state !== "ok");
  return (
    <section aria-label="Agent">
      <h3>
        Agent of {status.node}: {status.state}
      </h3>
      {notable.length > 0 && (
        <ul>
          {notable.map((f) => (
            <li key={f.name}>
              {f.name} ({f.state}): {f.chosen} {f.why}
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}

function Maps({ health: { maps, mapsError, socket } }: { health: Health }) {
  if (mapsError || !maps)
    return (
      <p class="error" id="maps-error">
        BPF maps: {mapsError}
      </p>
    );
  const full = (m: BPFMap) => (m.entries < 0 || m.maxEntries === 0 ? -1 : m.entries / m.maxEntries);
  const sorted = [...maps].sort((a, b) => full(b) - full(a) || a.name.localeCompare(b.name));
  return (
    <table class="list" id="maps">
      <caption>BPF maps of the agent at {socket}, the fullest first</caption>
      <thead>
        <tr>
          <th scope="col">Map</th>
          <th scope="col">Type</th>
          <th scope="col">Entries</th>
          <th scope="col" class="number">
            Memory
          </th>
        </tr>
      </thead>
      <tbody>
        {sorted.map((m) => (
          <tr key={m.name}>
            <th scope="row">{m.name}</th>
            <td>{m.type}</td>
            <td>{m.entries < 0 ? "not counted" : <Fill value={m.entries} max={m.maxEntries} what={m.name} />}</td>
            <td class="number">{Math.ceil(m.bytes / 1024).toLocaleString("en")} KiB</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Fill({ value, max, what }: { value: number; max: number; what: string }) {
  return (
    <span class="fill">
      <meter
        min={0}
        max={max || 1}
        high={max * 0.8}
        optimum={0}
        value={value}
        aria-label={`How full ${what} is`}
      />{" "}
      {value.toLocaleString("en")} of {max.toLocaleString("en")}
    </span>
  );
}

function duration(seconds: number): string {
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}
