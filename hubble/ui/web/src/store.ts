import { Edges, Rate } from "./edges";
import { toQuery, type Filters } from "./filters";
import { readRow, readVertex, vertexName, type Batch, type Lost, type NodeState, type Row } from "./model";
import { Ring } from "./ring";
import { follow } from "./stream";

export const maxRows = 20_000;
const announceEvery = 3000;
const maxNodeStates = 20;

export type Connection = { state: "connecting" | "live" | "failed"; error: string; fatal: boolean };

// Store has all that the stream brought. Its listeners are called at most once a frame.
export class Store {
  rows = new Ring<Row>(maxRows);
  edges = new Edges();
  rate = new Rate();
  drops = new Rate();
  stream = "";
  server = "";
  connection: Connection = { state: "connecting", error: "", fatal: false };
  flows = 0;
  skipped = 0;
  edgesLeftOut = 0;
  lost = new Map<string, Lost>();
  nodeStates: NodeState[] = [];
  announcement = "";
  // received counts rows, for tests of what a page keeps up with.
  received = 0;
  version = 0;
  // urgent changes with each drop: the map does not wait for its next drawing.
  urgent = 0;

  private abort = new AbortController();
  private listeners = new Set<() => void>();
  private scheduled = false;
  private announced = 0;
  private unannounced = 0;

  start(filters: Filters): void {
    this.abort.abort();
    this.abort = new AbortController();
    const signal = this.abort.signal;
    this.clear();
    this.connection = { state: "connecting", error: "", fatal: false };
    void follow(
      toQuery(filters),
      {
        hello: (h) => {
          this.clear();
          this.stream = h.stream;
          this.server = h.server;
          this.connection = { state: "live", error: "", fatal: false };
          this.changed();
        },
        batch: (b) => {
          if (!signal.aborted) this.take(b);
        },
        failed: (error, fatal) => {
          if (signal.aborted) return;
          this.connection = { state: "failed", error, fatal };
          this.changed();
        },
      },
      signal,
    );
    this.changed();
  }

  stop(): void {
    this.abort.abort();
  }

  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => {
      this.listeners.delete(listener);
    };
  }

  private clear(): void {
    this.rows.clear();
    this.edges = new Edges();
    this.rate = new Rate();
    this.drops = new Rate();
    this.flows = this.skipped = this.edgesLeftOut = 0;
    this.lost.clear();
    this.nodeStates = [];
  }

  private take(b: Batch): void {
    const now = Date.now();
    for (const a of b.rows ?? []) this.rows.push(readRow(a));
    this.received += b.rows?.length ?? 0;
    this.flows += b.flows ?? 0;
    this.skipped += b.skipped ?? 0;
    this.edgesLeftOut += b.edgesLeftOut ?? 0;
    for (const l of b.lost ?? []) {
      const key = `${l.node} ${l.source}`;
      const sum = this.lost.get(key);
      if (sum) sum.count += l.count;
      else if (this.lost.size < 1000) this.lost.set(key, { ...l });
    }
    this.nodeStates = [...this.nodeStates, ...(b.nodes ?? [])].slice(-maxNodeStates);
    // edges are in the time of this machine: that of the server may be another
    const skew = now - b.at;
    for (const d of b.edges ?? []) {
      this.edges.add(d.lastDrop ? { ...d, lastDrop: d.lastDrop + skew } : d, now);
    }
    let past = 0;
    for (const a of b.rows ?? []) if (a[1] < b.at - 10_000) past++;
    this.rate.add((b.flows ?? 0) - past, now);
    this.countDrops(b, now);
    this.changed();
  }

  private countDrops(b: Batch, now: number): void {
    let dropped = 0;
    let example = "";
    for (const d of b.edges ?? []) {
      if (!d.dropped || d.past || readVertex(d.from).kind === "Service") continue;
      dropped += d.dropped;
      example = `${vertexName(readVertex(d.from))} to ${vertexName(readVertex(d.to))}: ${d.rule ?? ""}`;
    }
    if (!dropped) return;
    this.drops.add(dropped, now);
    this.urgent++;
    this.unannounced += dropped;
    if (now - this.announced < announceEvery) return;
    this.announcement = `${this.unannounced} dropped: ${example}`;
    this.announced = now;
    this.unannounced = 0;
  }

  private changed(): void {
    if (this.scheduled) return;
    this.scheduled = true;
    setTimeout(() => {
      this.scheduled = false;
      this.version++;
      for (const l of this.listeners) l();
    }, 16);
  }
}
